"""Fixtures of the tests of the modern API."""

import base64

import pytest

from triton_sam import SAM2TritonClient


@pytest.fixture(scope="module")
def picture(images):
    return (images / "shapes.jpg").read_bytes()


@pytest.fixture(scope="module")
def light_triton():
    """A Triton in this process, for tests that need any masks."""
    from support.in_process import made_up_triton

    with made_up_triton({"sam2": "sam2"}, ["sam2"]) as server:
        yield server


@pytest.fixture(scope="module")
def image64(picture):
    """The picture as tools send it."""
    return base64.b64encode(picture).decode()


@pytest.fixture(scope="module")
def sam2(service_triton, picture):
    """A client of Triton with the picture."""
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(picture)
        yield client


@pytest.fixture(scope="module")
def image(service, picture):
    return service.upload(picture)


@pytest.fixture
def segment(service, image):
    def ask(body, **headers):
        return service.http.post(f"/v1/images/{image['id']}/segment", json=body, headers=headers)

    return ask


@pytest.fixture(scope="module")
def mp4(tmp_path_factory):
    """The content of a short drawn video."""
    from support import clip

    return clip.write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4").read_bytes()


@pytest.fixture(scope="module")
def running():
    """A service with a video client that needs no Triton, and that client."""
    from support.fake_video_client import service_with_videos

    with service_with_videos() as running:
        yield running


@pytest.fixture
def http(running):
    return running[0].http


@pytest.fixture
def client(running):
    client = running[1]
    yield client
    client.limit, client.failure = None, None


@pytest.fixture
def video(http, client, mp4):
    """Path of an uploaded video; it is removed afterwards."""
    from support.running_service import upload

    path = f"/v1/videos/{upload(http, mp4)['id']}"
    yield path
    http.delete(path)


@pytest.fixture
def two_objects(shapes):
    """The page with two objects that were clicked, the second one active."""
    shapes.uncheck("#hover")
    shapes.click(200, 180)
    shapes.settled()
    shapes.page.keyboard.press("n")
    shapes.click(620, 420)
    shapes.settled()
    return shapes
