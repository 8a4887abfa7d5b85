"""The catalogue, downloads from HTTP servers that misbehave in many ways, and images from the web."""

import io
import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image
from support.file_server import CONTENT, NAME, Handler, cut, entry, get, names, serve, slowly, status

from triton_sam import cli, fetch_image
from triton_sam.download import catalogue as checkpoints
from triton_sam.download.catalogue import catalogue, find
from triton_sam.errors import ChecksumError, ConfigurationError, DownloadError, ImageError
from triton_sam.inputs.images import open_image

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_the_catalogue_is_listed(capsys):
    assert cli.main(["models", "--catalogue"]) == 0
    commands = {line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()}
    on_hub = {f"triton-sam setup sam3 {word}" for word in ("fp32", "fp16", "checkpoint")}
    assert commands == {f"triton-sam setup {row.family} {row.word}" for row in catalogue()} | on_hub
    assert cli.main(["models", "--catalogue", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(commands)


def test_find():
    assert find("sam2", "tiny").file_name == "sam2.1_hiera_tiny.pt"
    assert find("sam2", "base_plus").key == "sam2/base_plus"
    assert find("sam2", "medsam2").image_size == 512
    with pytest.raises(ConfigurationError, match="choose one of tiny, small, base_plus, large, sam2"):
        find("sam2", "huge")
    with pytest.raises(ConfigurationError, match="choose one of edgetam, mobilesam, sam1, sam2, samhq"):
        find("sam9", "tiny")


@pytest.mark.parametrize("size", [True, False])
def test_a_download_makes_the_directory_and_is_not_repeated(file_server, tmp_path, size):
    directory = tmp_path / "a" / "b"
    for _ in range(2):
        path = checkpoints.download(entry(file_server, size=size), directory, progress=False)
        assert path == directory / NAME
        assert path.read_bytes() == CONTENT
        assert names(directory) == [NAME]
    assert len(file_server.requests) == 1


def test_wrong_file_stays_until_the_new_one_is_complete(file_server, tmp_path, capsys):
    old = bytes(len(CONTENT))
    (tmp_path / NAME).write_bytes(old)
    file_server.acts = [status(404)]
    with pytest.raises(DownloadError):
        get(file_server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == old
    checkpoints.download(entry(file_server), tmp_path)
    assert "not the expected file" in capsys.readouterr().err
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_cut_at_half_resumes_in_a_later_call(file_server, tmp_path):
    file_server.acts = [cut(350_000)]
    with pytest.raises(DownloadError, match="350000 bytes are kept"):
        get(file_server, tmp_path, retries=0)
    assert names(tmp_path) == [f"{NAME}.part", f"{NAME}.part.etag"]
    assert get(file_server, tmp_path).read_bytes() == CONTENT
    assert file_server.ranges() == [None, "bytes=350000-"]


def test_a_file_without_a_hash_is_not_resumed_and_leaves_nothing(file_server, tmp_path):
    file_server.acts = [cut(350_000)]
    unknown = replace(entry(file_server, size=False), sha256="")
    with pytest.raises(DownloadError) as failed:
        checkpoints.download(unknown, tmp_path, progress=False, retries=0)
    assert "continues" not in str(failed.value)
    assert names(tmp_path) == []


def early(handler: Handler) -> None:
    """Say no length, and end too early."""
    handler.head(200)
    handler.wfile.write(CONTENT[:1000])


def endless(handler: Handler) -> None:
    handler.head(200)
    handler.wfile.write(CONTENT + CONTENT)


LENGTH = len(CONTENT)


@pytest.mark.parametrize(
    ("kept", "act", "size", "ranges"),
    [
        (b"", cut(350_000), True, [None, "bytes=350000-"]),
        (b"", early, True, [None, "bytes=1000-"]),
        (CONTENT[:1000], partial(serve, ranges=False), True, ["bytes=1000-"]),
        (CONTENT[:1000], status(206, Content_Range=f"bytes 5-{LENGTH - 1}/{LENGTH}"), True, ["bytes=1000-", None]),
        (bytes(1000), None, True, ["bytes=1000-", None]),
        (CONTENT, None, True, []),
        (CONTENT, None, False, [f"bytes={LENGTH}-"]),  # the server says 416
        (CONTENT + b"more", None, True, [None]),
        (CONTENT + b"more", None, False, [f"bytes={LENGTH + 4}-", None]),
        *((b"", status(code), True, [None, None]) for code in (429, 500, 502, 503, 504)),
    ],
    ids=[
        *("cut", "ends early", "a server without ranges", "another range", "a damaged part", "complete"),
        *("complete, size unknown", "too long", "too long, size unknown", "429", "500", "502", "503", "504"),
    ],
)
def test_a_part_is_continued_or_begun_again(file_server, tmp_path, kept, act, size, ranges):
    if kept:
        (tmp_path / f"{NAME}.part").write_bytes(kept)
    file_server.acts = [act] if act else []
    assert checkpoints.download(entry(file_server, size=size), tmp_path, progress=False).read_bytes() == CONTENT
    assert file_server.ranges() == ranges
    assert names(tmp_path) == [NAME]


@pytest.mark.parametrize(
    ("content", "acts", "words"),
    [
        (bytes(LENGTH), [], "not the expected file"),
        (b"<html>please log in</html>", [], "26 bytes"),
        (CONTENT, [endless], "more than"),
    ],
)
def test_wrong_content_is_refused_and_removed(file_server, tmp_path, content, acts, words):
    file_server.content, file_server.acts = content, acts
    with pytest.raises(ChecksumError, match=words):
        get(file_server, tmp_path)
    assert names(tmp_path) == []


def test_tries_are_counted_from_the_last_progress(file_server, tmp_path):
    file_server.acts = [cut(100_000), cut(200_000), cut(300_000), cut(400_000)]
    assert get(file_server, tmp_path, retries=1).read_bytes() == CONTENT


def test_server_without_ranges_that_always_breaks_off_ends(file_server, tmp_path):
    file_server.acts = [partial(serve, ranges=False, end=300_000)] * 9
    with pytest.raises(DownloadError, match="cannot download"):
        get(file_server, tmp_path, retries=2)
    assert len(file_server.requests) == 3


def test_changed_file_starts_over(file_server, tmp_path):
    new = bytes(reversed(CONTENT))
    file_server.acts = [cut(350_000)]
    with pytest.raises(DownloadError):
        get(file_server, tmp_path, retries=0)
    file_server.content, file_server.tag = new, '"two"'
    path = checkpoints.download(entry(file_server, new), tmp_path, progress=False)
    assert path.read_bytes() == new
    assert len(file_server.requests) == 2


def test_pauses_grow_with_jitter(file_server, tmp_path, pauses):
    file_server.acts = [status(503)] * 99
    with pytest.raises(DownloadError, match="503"):
        get(file_server, tmp_path, retries=9)
    assert len(pauses) == 9
    for index, pause in enumerate(pauses):
        assert min(60, 2**index) / 2 <= pause <= min(60, 2**index)


def test_an_unknown_host_is_given_up_soon_and_says_where_to_put_the_file(file_server, tmp_path, pauses):
    wanted = replace(entry(file_server), url="http://no-such-host.invalid/files/model.pt")
    with pytest.raises(DownloadError, match="use --mirror; or put the file at ") as caught:
        checkpoints.download(wanted, tmp_path, progress=False)
    assert str(tmp_path / wanted.file_name) in str(caught.value)
    assert len(pauses) == 2
    with pytest.raises(DownloadError, match="set HTTPS_PROXY; or put the file at "):  # no mirror can be checked
        checkpoints.download(replace(wanted, sha256=""), tmp_path, progress=False)
    with pytest.raises(DownloadError, match="check the URL of the mirror; or put the file at ") as caught:
        checkpoints.download(wanted, tmp_path, mirror="http://no-such-host.invalid/", progress=False)
    assert "--mirror" not in str(caught.value)


def test_retry_after_is_honoured_and_bounded(file_server, tmp_path, pauses):
    file_server.acts = [status(503, Retry_After=7), status(429, Retry_After=86400), status(503, Retry_After="soon")]
    get(file_server, tmp_path)
    assert pauses[:2] == [7, 60]
    assert len(pauses) == 3


@pytest.mark.parametrize(
    ("code", "words"), [(404, "does not exist .*: check the URL"), (403, "forbidden"), (418, "answered 418")]
)
def test_lasting_status_is_final(file_server, tmp_path, code, words):
    file_server.acts = [status(code)]
    with pytest.raises(DownloadError, match=words):
        get(file_server, tmp_path)
    assert len(file_server.requests) == 1
    assert names(tmp_path) == []


@pytest.fixture
def image_url(file_server, images):
    """The address of an image that the server has."""
    file_server.content = (images / "shapes.jpg").read_bytes()
    return f"{file_server.url}{file_server.where}"


def test_the_bytes_are_those_of_the_file_also_after_a_redirect(file_server, image_url):
    content = fetch_image(image_url)
    assert content == file_server.content
    np.testing.assert_array_equal(open_image(content), Image.open(io.BytesIO(file_server.content)).convert("RGB"))
    file_server.acts = [status(302, Location=file_server.where)]
    assert fetch_image(image_url) == file_server.content


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
def test_failures_are_one_line(file_server, image_url, acts, options, words):
    file_server.acts = acts
    with pytest.raises(ImageError, match=words) as caught:
        fetch_image(image_url, **options)
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
