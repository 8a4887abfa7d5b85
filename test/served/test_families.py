"""All families in one local server and one repository, with the same client code, and with aliases."""

from __future__ import annotations

import contextlib
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of all families takes minutes
pytest.importorskip("torch")
pytest.importorskip("segment_anything")
pytest.importorskip("sam2")
pytest.importorskip("transformers")
local_server = pytest.importorskip("triton_sam.local_server")
pytest.importorskip("onnxruntime")
grpc = pytest.importorskip("tritonclient.grpc")

from support.family_exports import SERVED as FAMILIES  # noqa: E402
from support.family_exports import SMALL, edgetam_micro, sam1_micro, sam3_reduced  # noqa: E402

from triton_sam import SAM2TritonClient, SamTritonClient  # noqa: E402
from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.reference import Reference  # noqa: E402
from triton_sam.export.sam1.reference import Sam1Reference  # noqa: E402
from triton_sam.export.sam2.recipe import load_model as load_sam2  # noqa: E402
from triton_sam.export.sam2.reference import Sam2Reference  # noqa: E402
from triton_sam.export.sam3.reference import Sam3Reference  # noqa: E402
from triton_sam.inputs.images import encoder_input, open_image  # noqa: E402
from triton_sam.repository import BUILT_IN_CHECKPOINT  # noqa: E402
from triton_sam.verify import THRESHOLDS  # noqa: E402
from triton_sam.verify.compare import format_table, verify  # noqa: E402

BOX = [90, 70, 310, 290]


@pytest.fixture(scope="module")
def server(families_server: Any) -> Any:
    return families_server


def test_all_are_ready_and_sorted(server: Any) -> None:
    with SamTritonClient(server.http_url) as client:
        models = client.models()
    pairs = {f"{family}_{role}" for family in FAMILIES for role in ("encoder", "decoder")}
    assert pairs | set(FAMILIES) | {"sam2.1_large_encoder", "sam3_tracker_encoder_fp16"} <= set(models)
    expected = {"sam1": ("sam1",), "sam2": ("sam2", "my_sam"), "sam3": ("sam3",)}
    if "mobilesam" in FAMILIES:  # its tensors are SAM1's, so only config.pbtxt tells the two apart
        expected["mobilesam"] = ("mobilesam", "my_mobile")
    if "edgetam" in FAMILIES:  # the same for SAM2's tensors
        expected["edgetam"] = ("edgetam",)
    if "samhq" in FAMILIES:
        expected["samhq"] = ("samhq",)
    assert models.variants == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_one_behaviour(server: Any, images: Path, family: str) -> None:
    url = server.grpc_url if family == "sam3" else server.http_url
    with SAM2TritonClient(url, model_type=family) as client:
        assert client.is_ready()
        client.set_image(images / "shapes.jpg")
        side = client.family.mask_size
        for prompt, objects in (
            ({"point_coords": [[200, 180]]}, 1),
            ({"box": [BOX] * 2}, 2),
            ({"box": BOX, "point_coords": [[200, 180]], "point_labels": [0]}, 1),
            ({"point_coords": [[[200, 180], [10, 10]], [[520, 145]]], "point_labels": [[1, 0], [1]]}, 2),
        ):
            for multimask, candidates in ((False, 1), (True, client.family.candidates)):
                masks, scores = client.predict(**prompt, multimask_output=multimask)
                assert masks.shape == (objects, candidates, side, side)
                assert scores.shape == (objects, candidates)
        (segment,) = client.segment([[200, 180]])
        assert segment.mask.shape == (600, 800)
        together, _ = client.predict([[[200, 180], [10, 10]], [[520, 145]]], [[1, 0], [1]])
        alone, _ = client.predict([[520, 145]])
        np.testing.assert_allclose(together[1], alone[0], atol=1e-3)


def reference(family: str) -> Reference:
    """Return the official predictor with the weights of the served model."""
    if family == "sam1":
        return Sam1Reference(sam1_micro().model)
    if family in ("mobilesam", "samhq"):
        return registry.exporter(family).reference(SMALL[family]().model)
    if family == "edgetam":
        from triton_sam.export.edgetam.model import image_model
        from triton_sam.export.edgetam.reference import EdgeTamReference

        return EdgeTamReference(image_model(edgetam_micro().model))
    if family == "sam3":
        return Sam3Reference(sam3_reduced().model)
    return Sam2Reference(load_sam2(bundled("checkpoints") / f"{BUILT_IN_CHECKPOINT}.pt", None))


def test_three_clients_segment_the_same_photo_at_once(server: Any, images: Path) -> None:
    photo, box = images / "coffee.jpg", [180, 60, 420, 330]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(SamTritonClient(server.http_url, family)) for family in FAMILIES]

        def segment(client: SamTritonClient) -> np.ndarray:
            client.set_image(photo)
            (found,) = client.segment(box=box)
            return found.mask

        with ThreadPoolExecutor(len(clients)) as threads:
            masks = list(threads.map(segment, clients))
    size = open_image(photo).size
    for family, mask in zip(FAMILIES, masks, strict=True):
        official = reference(family)
        official.set_image(open_image(photo))
        (expected,) = official.answer({"box": np.array(box, np.float32)}, multimask=False).masks
        assert mask.shape == size[::-1]
        assert mask.any(), family
        assert (mask != expected).mean() < 1e-4, family


OFFICIAL = (
    "sam1",
    "sam2",
    "sam3",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in FAMILIES if name in SMALL),
)


@pytest.mark.parametrize("family", OFFICIAL)
def test_served_equals_the_official_predictor(server: Any, images: Path, family: str) -> None:
    with (
        SamTritonClient(server.grpc_url, family) as client,
        SamTritonClient(server.http_url, family, embeddings="client") as naive,
    ):
        rows = verify(reference(family), images / "coffee.jpg", {"session": client, "pair": naive})
    assert all(row.passes(THRESHOLDS["fp32"]) for row in rows), format_table(rows, THRESHOLDS["fp32"])


def stream(url: str, model: str, name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """Send a request as sam-link does: ModelStreamInfer, gzip, priority 5, 32 MiB messages, all outputs."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    options = grpc.KeepAliveOptions()
    limits = [("grpc.max_receive_message_length", 32 << 20), ("grpc.max_send_message_length", 32 << 20)]
    client = grpc.InferenceServerClient(url.removeprefix("grpc://"), keepalive_options=options, channel_args=limits)
    tensor = grpc.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    try:
        assert client.is_model_ready(model)
        client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm="gzip")
        client.async_stream_infer(model, [tensor], request_id="a", priority=5)
        result, error = answers.get(timeout=120)
        assert error is None, error
        response = result.get_response()
        assert response.id == "a"
        assert {output.datatype for output in response.outputs} == {"FP32"}
        return {output.name: result.as_numpy(output.name) for output in response.outputs}
    finally:
        client.stop_stream()
        client.close()


@pytest.mark.parametrize(
    ("model", "family", "names"),
    [
        ("sam1_encoder", "sam1", {"image_embeddings": "image_embeddings"}),
        (
            "sam2.1_large_encoder",
            "sam2",
            {
                "image_embed": "image_embeddings",
                "high_res_feats_0": "high_res_feats_0",
                "high_res_feats_1": "high_res_feats_1",
            },
        ),
        ("sam3_tracker_encoder_fp16", "sam3", {f"image_embeddings.{i}": f"image_embeddings.{i}" for i in range(3)}),
    ],
)
def test_paintera_dialect(server: Any, images: Path, model: str, family: str, names: dict[str, str]) -> None:
    with SamTritonClient(server.grpc_url, family, embeddings="client") as client:
        expected = client.encode(images / "shapes.jpg")
        (spec,) = client.family.encoder.inputs
        pixels = encoder_input(open_image(images / "shapes.jpg"), client.family)
    found = stream(server.grpc_url, model, spec.name, pixels)
    assert set(found) == set(names)
    for theirs, ours in names.items():
        np.testing.assert_allclose(found[theirs], expected[ours], atol=1e-5)


def test_an_alias_is_a_variant_with_mask_input(server: Any, images: Path) -> None:
    answers = []
    for name in (None, "my_sam"):
        with SamTritonClient(server.http_url, "sam2", model_name=name) as client:
            client.set_image(images / "shapes.jpg")
            first, _ = client.predict([[200, 180]])
            answers.append((first, client.predict([[200, 180]], mask_input=first[0])[0]))
    np.testing.assert_allclose(answers[0][0], answers[1][0], atol=1e-4)
    np.testing.assert_allclose(answers[0][1], answers[1][1], atol=1e-4)
