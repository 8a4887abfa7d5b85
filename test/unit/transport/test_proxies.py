"""Proxies between a client and its servers: turns, foreign pages, header names."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.transport.url import parse_url


def test_two_servers_that_take_turns_both_get_the_image() -> None:
    """Ids went to one and images to the other; after two misses in a row the image is sent twice, which ends it."""
    from triton_sam.client.session import RemoteImage, SessionClick, SessionImage
    from triton_sam.errors import UnknownImageError
    from triton_sam.families import get_family

    servers: list[set[bytes]] = [set(), set()]
    turns = 0

    def send(request) -> bool:
        """Whether the server whose turn it is answers; it keeps an image that comes along."""
        nonlocal turns
        turns += 1
        held = servers[turns % 2]
        if "image" in request.inputs:
            held.add(request.inputs["image"][0])
        return bool(held)

    family = get_family("sam2")
    image = SessionImage(family.name, "sam2_encoder", (8, 8), {}, RemoteImage(b"picture", "id"))
    click = SessionClick("sam2", {"image_id": np.array([b"id"], np.object_)}, ("masks",), image)
    rounds = []
    for _ in range(6):
        before = turns
        if send(click):
            click.hit()
        else:
            answers = [send(again) for again in click.again(UnknownImageError("gone"))]
            assert answers[-1]
        rounds.append(turns - before)
    assert rounds == [2, 3, 1, 1, 1, 1]
    assert all(servers)


def test_a_cache_that_is_too_small_does_not_double_every_upload() -> None:
    from triton_sam.client.session import RemoteImage, SessionClick, SessionImage
    from triton_sam.errors import UnknownImageError

    image = SessionImage("sam2", "sam2_encoder", (8, 8), {}, RemoteImage(b"picture", "id"))
    click = SessionClick("sam2", {}, ("masks",), image)
    assert [len(click.again(UnknownImageError("gone"))) for _ in range(9)] == [1, 2, 1, 2, 1, 1, 1, 2, 1]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("401", "refuses access: HTTP status 401"),
        ("413", "takes no request of that size: HTTP status 413"),
        ("502", "is not available: HTTP status 502"),
        ("404", "does not answer like a Triton server"),
    ],
)
def test_a_foreign_page_of_a_proxy_is_told_by_its_status(status: str, words: str) -> None:
    from tritonclient.utils import InferenceServerException

    from triton_sam.transport.triton import map_error

    page = InferenceServerException("An exception occurred in the client while decoding the response: <html>", status)
    assert words in str(map_error(page, parse_url("https://host")))


def test_header_names_are_lower_case_for_grpc_alone() -> None:
    from triton_sam.transport.triton import request_headers

    headers = {"Authorization": "Bearer X"}
    assert request_headers(parse_url("grpcs://host"), headers) == {"authorization": "Bearer X"}
    assert request_headers(parse_url("https://host"), headers) == headers
    assert request_headers(parse_url("https://host"), None) == {}
