"""Images that `triton-sam predict` reads from the web."""

import functools
import http.server
import threading

import pytest

from triton_sam.commands._predict_files import read_sources
from triton_sam.errors import ConfigurationError, ImageError


class Site(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def site(images):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=images))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_url_is_an_image_with_the_name_of_its_file(site, images):
    [source] = read_sources([f"{site}/shapes.jpg?size=large"])
    assert source.content == (images / "shapes.jpg").read_bytes()
    assert (source.file_name, source.stem) == ("shapes.jpg", "shapes")


def test_failures_are_told(site):
    with pytest.raises(ImageError, match="404"):
        read_sources([f"{site}/missing.jpg"])
    with pytest.raises(ConfigurationError, match="named twice"):
        read_sources([f"{site}/coffee.jpg", f"{site}/coffee.jpg"])


def test_files_keep_their_names(images):
    [source] = read_sources([str(images / "shapes.jpg")])
    assert (source.file_name, source.stem) == ("shapes.jpg", "shapes")


def test_a_file_url_is_the_path_that_it_names(images, tmp_path):
    spaced = tmp_path / "two words.jpg"
    spaced.write_bytes((images / "shapes.jpg").read_bytes())
    [source] = read_sources([spaced.as_uri()])
    assert (source.name, source.content) == (str(spaced), spaced)  # the name is what --out must not overwrite
    with pytest.raises(ConfigurationError, match="named twice"):
        read_sources([spaced.as_uri(), str(spaced)])
    with pytest.raises(ImageError, match="another machine"):
        read_sources(["file://elsewhere/photo.jpg"])
