"""Images from the web, for callers who ask for them."""

import io
import re

import numpy as np
import pytest
from PIL import Image
from support.file_server import cut, slowly, status

from triton_sam import fetch_image
from triton_sam.errors import ConfigurationError, ImageError
from triton_sam.inputs.images import open_image

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def url(server, images):
    """The address of an image that the server has."""
    server.content = (images / "shapes.jpg").read_bytes()
    return f"{server.url}{server.where}"


def test_the_bytes_are_those_of_the_file_also_after_a_redirect(server, url):
    content = fetch_image(url)
    assert content == server.content
    np.testing.assert_array_equal(open_image(content), Image.open(io.BytesIO(server.content)).convert("RGB"))
    server.acts = [status(302, Location=server.where)]
    assert fetch_image(url) == server.content


@pytest.mark.parametrize(
    ("acts", "options", "words"),
    [
        ([status(404)], {}, "the server answered 404"),
        ([status(503)], {}, "the server answered 503"),
        ([cut(5000)], {}, "no image at http://127.0.0.1"),
        ([], {"max_bytes": 5000}, "is larger than 5000 bytes"),
        ([slowly], {"timeout": 0.1}, "127.0.0.1"),
    ],
)
def test_failures_are_one_line(server, url, acts, options, words):
    server.acts = acts
    with pytest.raises(ImageError, match=words) as caught:
        fetch_image(url, **options)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_asked_for():
    with pytest.raises(ImageError, match=r"no image at http://127\.0\.0\.1:9.*Connection refused") as caught:
        fetch_image("http://127.0.0.1:9/x.jpg")
    assert "Errno" not in str(caught.value)
    for url, options in (("ftp://host/x.jpg", {}), ("x.jpg", {}), ("http://h/x.jpg", {"timeout": 0})):
        with pytest.raises(ConfigurationError):
            fetch_image(url, **options)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "http://localhost:99999/a.jpg",
            "'http://localhost:99999/a.jpg' is not a valid URL: it must look like https://",
        ),
        ("http://[x/a.jpg", "a port up to 65535"),
        ("http://a host/x.jpg", "is not a valid URL"),
        ("http://\0/", r"'http://\x00/' holds a line break or another control character: leave it out"),
        ("http://127.0.0.1:9/a\nb.jpg", r"a\nb.jpg' holds a line break"),
    ],
)
def test_urls_that_are_none_are_one_line(url, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)) as caught:
        fetch_image(url)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x.jpg", "HTTPS://host/x.jpg"])
def test_no_client_opens_the_web_by_itself(url):
    with pytest.raises(ImageError, match=r"triton_sam\.fetch_image"):
        open_image(url)
