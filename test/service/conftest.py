"""Fixtures of the tests of the modern API."""

import pytest


@pytest.fixture(scope="module")
def picture(images):
    return (images / "shapes.jpg").read_bytes()


@pytest.fixture(scope="module")
def image(service, picture):
    return service.upload(picture)


@pytest.fixture
def segment(service, image):
    def ask(body, **headers):
        return service.http.post(f"/v1/images/{image['id']}/segment", json=body, headers=headers)

    return ask
