"""Long runs of the session model: it gives correct masks without errors, and cache and memory stay bounded.

By default, the runs are short. At full length, they are 5,000 clicks on 500 images, and 10,000 bad requests:

    TRITON_SAM_SOAK=full pytest -m slow -s test/slow/test_soak.py
"""

import json
import os
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from support import hard_inputs
from support.contents import encoded
from support.processes import server_memory
from support.session_requests import IMAGE_BYTES, metrics, point_inputs, text, upload

from triton_sam import InferenceError, SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire import contract

FULL = os.environ.get("TRITON_SAM_SOAK") == "full"
"""Whether the runs have their full length."""
IMAGES_IN_CACHE = 20 if FULL else 8
"""Capacity of the server's cache in images."""
CALL_TIMEOUT = 3 * 3600.0
"""Timeout of a call in seconds, long because other programs may slow down the machine for a long time."""

pytestmark = [pytest.mark.slow, pytest.mark.nightly, *([pytest.mark.timeout(3 * 3600)] if FULL else [])]

IMAGES, CLICKS = (500, 10) if FULL else (40, 5)
BAD_REQUESTS = 10_000 if FULL else 2_000


def draw_image(number):
    """Return a different image for each number, 160x120 pixels, as PNG."""
    rng = np.random.default_rng(number)
    pixels = np.full((120, 160, 3), rng.integers(0, 256, 3), np.uint8)
    left, top = rng.integers(10, 60, 2)
    pixels[top : top + 50, left : left + 80] = rng.integers(0, 256, 3)
    return encoded(Image.fromarray(pixels))


@pytest.fixture(scope="module")
def small_cache_server(tmp_path_factory):
    """A server whose session model keeps IMAGES_IN_CACHE images."""
    local_server = pytest.importorskip("triton_sam.local_server")
    repository = tmp_path_factory.mktemp("soak") / "models"
    shutil.copytree(bundled("model_repository"), repository, ignore=shutil.ignore_patterns("sam1*", "sam3*"))
    config = repository / "sam2" / "config.pbtxt"
    config.write_text(config.read_text().replace("536870912", str(IMAGES_IN_CACHE * IMAGE_BYTES)))
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    log = repository.parent / "server.log"  # pytest keeps it for finding the cause of a restart
    with local_server.LocalServer(repository, models=["sam2"], log_file=log, **ports) as running:
        yield running


def test_memory_stays_flat_with_many_images(small_cache_server):
    sizes = []
    with SAM2TritonClient(small_cache_server.grpc_url, timeout=CALL_TIMEOUT) as client:
        for number in range(IMAGES):
            client.set_image(draw_image(1000 + number))
            for _ in range(CLICKS):
                client.predict([[60.0, 50.0]])
            sizes.append(server_memory(small_cache_server.pid))
            if number % 50 == 49:
                print(f"\n{number + 1} images: {sizes[-1] / 2**20:.0f} MiB", flush=True)
    settled_after = max(2 * IMAGES_IN_CACHE, IMAGES // 5)
    settled = sizes[settled_after]
    print(
        f"\n{IMAGES * CLICKS} clicks on {IMAGES} images, cache for {IMAGES_IN_CACHE}: resident memory"
        f" {settled / 2**20:.0f} MiB after {settled_after} images, {sizes[-1] / 2**20:.0f} at the end"
    )
    values = metrics(small_cache_server)
    assert values["cache_bytes"] <= IMAGES_IN_CACHE * IMAGE_BYTES
    assert values["cache_evictions_total"] >= IMAGES - IMAGES_IN_CACHE
    assert sizes[-1] < 1.05 * settled + (32 << 20)


def test_bad_requests_do_not_disturb_good_ones(small_cache_server):
    rng = np.random.default_rng(0)
    whole = draw_image(1)
    broken = [
        lambda: {"image": text(whole[: rng.integers(0, len(whole) // 2)])},
        lambda: {"image": text(rng.bytes(rng.integers(0, 2000)))},
        lambda: {"image": text((hard_inputs.FOLDER / "bomb.png").read_bytes())},
        lambda: {"image_id": text(rng.bytes(8))},
        lambda: {"image_id": known, **point_inputs(*(10.0 ** rng.uniform(3, 30, 2)))},
        lambda: {"image_id": known, **point_inputs(np.nan, np.inf)},
        lambda: {"image_id": known, "point_coords": np.zeros((1, 10_000, 2), np.float32)},
        lambda: {"image_id": known, "boxes": rng.uniform(-1e3, 0, (3, 4)).astype(np.float32)},
        lambda: {"image_id": known, **point_inputs(), "output_format": text(b"tiff")},
        lambda: {"image_id": known, **point_inputs(), "mask_input": np.full((1, 1, 256, 256), np.nan, np.float32)},
        lambda: {"image_b64": text(b"%%%"), "prompt_json": text(b"{}")},
        lambda: {"prompt_json": text(rng.bytes(50))},
        lambda: {"prompt_json": text(b'{"points": "here", "image_id": "x"}')},
        dict,
    ]
    transport = Transport(parse_url(small_cache_server.http_url))
    known = upload(transport, whole)["image_id"]
    good = {"image_id": known, **point_inputs(60.0, 50.0)}
    expected = transport.infer("sam2", good, ["masks"])["masks"]
    codes, correct, sizes = Counter(), 0, []
    for number in range(BAD_REQUESTS):
        bad = broken[number % len(broken)]()
        codes[error_code(transport, bad)] += 1
        if number % 10 == 0:
            correct += np.array_equal(transport.infer("sam2", good, ["masks"])["masks"], expected)
        if number % (BAD_REQUESTS // 5) == BAD_REQUESTS // 5 - 1:
            sizes.append(server_memory(small_cache_server.pid))
    transport.close()
    print(
        f"\n{BAD_REQUESTS} bad requests {dict(codes)},"
        f" {correct} of {BAD_REQUESTS // 10} good ones correct, memory {sizes}"
    )
    assert correct == BAD_REQUESTS // 10
    assert set(codes) <= {*contract.CODES, contract.BAD_REQUEST}
    assert sizes[-1] < 1.05 * sizes[0]


def error_code(transport, tensors):
    """Return the code with which a bad request is refused."""
    if "prompt_json" in tensors:
        answer = transport.infer("sam2", tensors, ["result_json"])["result_json"]
        return json.loads(bytes(answer[0]))["error"]["code"]
    with pytest.raises(InferenceError) as caught:
        transport.infer("sam2", tensors, ["masks"])
    code = re.search(r"\b[A-Z]+_[A-Z_]+\b", str(caught.value))
    return code[0] if code else str(caught.value)
