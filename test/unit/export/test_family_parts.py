"""Parts of official models that our graphs have in another form: each changes the result, as in the official code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # torch computes images of 1024 pixels
torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from support.family_exports import PACKAGES, SMALLEST  # noqa: E402

from triton_sam.export import registry  # noqa: E402
from triton_sam.families.edgetam import EDGETAM  # noqa: E402

COORDS = torch.tensor([[[300.0, 200], [700, 800]], [[10, 20], [500, 400]]])
LABELS = torch.tensor([[1.0, 0], [1, 1]])


def noise(*shape: int) -> Any:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def edgetam(model: Any) -> tuple[Any, Any]:
    from triton_sam.export.edgetam.graphs import EdgeTamEncoder

    image = noise(1, 3, 1024, 1024)
    mean, std = (torch.tensor(each).reshape(1, 3, 1, 1) for each in (EDGETAM.pixel_mean, EDGETAM.pixel_std))
    fine, middle, coarse = model.get_image_embeddings((image - mean) / std)
    return EdgeTamEncoder(model)(image), (coarse, fine, middle)


def mobilesam(model: Any) -> tuple[Any, Any]:
    from triton_sam.export.mobilesam.graphs import MobileSamEncoder

    image = noise(1, 3, 1024, 1024)
    model.eval()  # the official code copies the attention biases here
    official = model.image_encoder((image * 255 - model.pixel_mean) / model.pixel_std)
    return (MobileSamEncoder(model)(image),), (official,)


def samhq(model: Any, *, multimask: bool = False) -> tuple[Any, Any]:
    """Decode two prompts on random embeddings. The results are logits and scores."""
    from segment_anything_hq import SamPredictor

    from triton_sam.export.samhq.graphs import SamHqDecoder, SamHqEncoder

    embeddings, early = noise(1, 256, 64, 64) - 0.5, noise(1, 64, 64, 32) - 0.5
    features = SamHqEncoder(model).features(embeddings, early.permute(0, 3, 1, 2))
    found = SamHqDecoder(model)(embeddings, features, COORDS, LABELS, torch.zeros(1, 1, 256, 256), torch.zeros(1))
    predictor = SamPredictor(model)
    predictor.features, predictor.interm_features, predictor.is_image_set = embeddings, [early], True
    predictor.input_size = predictor.original_size = (1024, 1024)
    _, scores, logits = predictor.predict_torch(COORDS, LABELS, multimask_output=multimask)
    return found[2 * multimask : 2 * multimask + 2], (logits, scores)


ATTENTION = "layers.2.blocks.0.attn."
PARTS: dict[Callable[[Any], tuple[Any, Any]], list[str]] = {
    edgetam: ["no_memory_embedding", "running_mean", "running_var"],  # 0 or 1 in a fresh model
    mobilesam: [f"{ATTENTION}{name}" for name in ("norm.weight", "norm.bias", "qkv.bias", "attention_biases")],
    samhq: ["hf_token", "hf_mlp", "embedding_encoder", "compress_vit_feat", "embedding_maskfeature"],
}


@pytest.mark.parametrize(("compute", "part"), [(compute, part) for compute in PARTS for part in PARTS[compute]])
@torch.no_grad()
def test_each_part_is_in_the_graph(compute: Callable[[Any], tuple[Any, Any]], part: str) -> None:
    family = compute.__name__
    pytest.importorskip(PACKAGES[family])
    model = registry.exporter(family).load(None, SMALLEST[family], random_seed=0)
    before = compute(model)[0][0].clone()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if part in name:
            tensor.mul_(1.5).add_(torch.linspace(-0.3, 0.3, tensor.numel()).reshape(tensor.shape))
    ours, official = compute(model)
    tolerances = [3e-5 * max(1.0, float(expected.abs().max())) for expected in official]
    assert (ours[0] - before).abs().max() > 5 * tolerances[0]
    for found, expected, tolerance in zip(ours, official, tolerances, strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


@torch.no_grad()
def test_each_object_of_samhq_gets_the_best_of_its_three_masks() -> None:
    """The bias of the last layer prefers one mask after the other."""
    pytest.importorskip(PACKAGES["samhq"])
    model = registry.exporter("samhq").load(None, SMALLEST["samhq"], random_seed=0)
    best, bias = set(), model.mask_decoder.iou_prediction_head.layers[-1].bias
    for token in (1, 2, 3):
        bias[token] += 100
        (logits, scores), (expected, expected_scores) = samhq(model, multimask=True)
        bias[token] -= 100
        assert logits.shape == (2, 1, 256, 256)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(scores, expected_scores, atol=1e-4, rtol=1e-5)
        best.add(float(logits.sum()))
    assert len(best) == 3
