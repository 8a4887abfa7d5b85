"""Fixtures of the tests of the modern API."""

import base64

import pytest


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
def drawn(request):
    """A service whose networks draw. SERVICE in a test's file has the options of drawn_service."""
    from support.drawn_server import drawn_service

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triton_sam.service.videos.sessions.MOST_SECONDS", 0.02)
        with drawn_service(**getattr(request.module, "SERVICE", {})) as drawn:
            yield drawn


@pytest.fixture
def running(drawn):
    """That service. After the test, nothing waits or fails."""
    yield drawn
    drawn.server.reset()


@pytest.fixture
def fresh(running):
    """No session is left from another test, not even one that still closes."""
    from support.conditions import wait_until

    for video in list(running.service.app.state.videos.sessions._sessions.values()):
        video.used = -1e9
    wait_until(lambda: not running.service.app.state.engine.budgets.videos.used)


@pytest.fixture
def http(running):
    return running.service.http


@pytest.fixture
def drawing(running):
    """The server of that service."""
    return running.server


@pytest.fixture
def video(http, mp4):
    """Path of an uploaded video; it is removed afterwards."""
    from support.running_service import upload

    path = f"/v1/videos/{upload(http, mp4)['id']}"
    yield path
    http.delete(path)


@pytest.fixture(scope="module")
def modules(chromium):
    """The modules of the page."""
    from support.running_browser import open_modules

    with open_modules(chromium) as modules:
        yield modules


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
