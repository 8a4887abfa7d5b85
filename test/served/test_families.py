"""All families in one local server and one repository, with the same client code, and with aliases."""

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the export of all families takes minutes
pytest.importorskip("torch")

from support.family_exports import SERVED as FAMILIES  # noqa: E402
from support.family_exports import edgetam_micro, export_once, sam3_reduced  # noqa: E402

from triton_sam import SamTritonClient  # noqa: E402
from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.client.session_image import SessionImage  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.reference import Reference  # noqa: E402
from triton_sam.export.sam2.recipe import EXPORTER as SAM2_EXPORTER  # noqa: E402
from triton_sam.export.sam2.recipe import Sam2Reference  # noqa: E402
from triton_sam.export.sam3.reference import Sam3Reference  # noqa: E402
from triton_sam.repository import BUILT_IN_CHECKPOINT  # noqa: E402
from triton_sam.verify import THRESHOLDS  # noqa: E402
from triton_sam.verify.compare import verify  # noqa: E402
from triton_sam.verify.report import format_table  # noqa: E402


def test_all_are_ready_and_sorted(families_server):
    with SamTritonClient(families_server.http_url) as client:
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


def reference(family: str) -> Reference:
    """Return the official predictor with the weights of the served model."""
    if family in ("sam1", "mobilesam", "samhq"):
        return registry.exporter(family).reference(export_once(family).model)
    if family == "edgetam":
        from triton_sam.export.edgetam.recipe import EdgeTamReference, image_model

        return EdgeTamReference(image_model(edgetam_micro().model))
    if family == "sam3":
        return Sam3Reference(sam3_reduced().model)
    return Sam2Reference(SAM2_EXPORTER.load(bundled("checkpoints") / f"{BUILT_IN_CHECKPOINT}.pt", None))


@pytest.mark.parametrize("family", FAMILIES)
def test_served_equals_the_official_predictor(families_server, images, family):
    """By clicks, boxes and masks, with embeddings in the requests and with those of the session model."""
    with (
        SamTritonClient(families_server.grpc_url, family) as client,
        SamTritonClient(families_server.http_url, family, embeddings="client") as naive,
    ):
        assert client.is_ready()
        rows = verify(reference(family), images / "coffee.jpg", {"session": client, "pair": naive})
        assert isinstance(client.image_embeddings, SessionImage)
    assert all(row.passes(THRESHOLDS["fp32"]) for row in rows), format_table(rows, THRESHOLDS["fp32"])


def test_an_alias_is_a_variant_with_mask_input(families_server, images):
    answers = []
    for name in (None, "my_sam"):
        with SamTritonClient(families_server.http_url, "sam2", model_name=name) as client:
            client.set_image(images / "shapes.jpg")
            first, _ = client.predict([[200, 180]])
            answers.append((first, client.predict([[200, 180]], mask_input=first[0])[0]))
    np.testing.assert_allclose(answers[0][0], answers[1][0], atol=1e-4)
    np.testing.assert_allclose(answers[0][1], answers[1][1], atol=1e-4)
