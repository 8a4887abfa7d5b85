"""SAM-HQ: the parts of the fine mask, and the best of three masks for each object."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # torch computes images of 1024 pixels
torch = pytest.importorskip("torch")
segment_anything_hq = pytest.importorskip("segment_anything_hq")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


from triton_sam.export.samhq.graphs import SamHqDecoder, SamHqEncoder  # noqa: E402
from triton_sam.export.samhq.recipe import EXPORTER  # noqa: E402

NO_MASK = torch.zeros(1, 1, 256, 256), torch.zeros(1)


@pytest.fixture(scope="module")
def decoded() -> Any:
    """Return a function that decodes two prompts on random embeddings, by our graph and by the official predictor."""
    model = EXPORTER.load(None, "micro", random_seed=0)
    drawn = torch.Generator().manual_seed(0)
    embeddings = torch.randn(1, 256, 64, 64, generator=drawn)
    early = torch.randn(1, 64, 64, 32, generator=drawn)
    coords = torch.tensor([[[300.0, 200], [700, 800]], [[10, 20], [500, 400]]])
    labels = torch.tensor([[1.0, 0], [1, 1]])

    @torch.no_grad()
    def decode(multimask: bool) -> tuple[Any, ...]:
        features = SamHqEncoder(model).features(embeddings, early.permute(0, 3, 1, 2))
        found = SamHqDecoder(model)(embeddings, features, coords, labels, *NO_MASK)
        predictor = segment_anything_hq.SamPredictor(model)
        predictor.features, predictor.interm_features, predictor.is_image_set = embeddings, [early], True
        predictor.input_size = predictor.original_size = (1024, 1024)
        _, scores, logits = predictor.predict_torch(coords, labels, multimask_output=multimask)
        return (*found[2 * multimask : 2 * multimask + 2], logits, scores)

    decode.model = model
    return decode


@pytest.mark.parametrize(
    "part", ["hf_token", "hf_mlp", "embedding_encoder", "compress_vit_feat", "embedding_maskfeature"]
)
def test_parts_of_the_fine_mask_are_all_in_the_graphs(decoded: Any, part: str) -> None:
    """Each part must change the logits, as in the official code."""
    before = decoded(False)[0]
    parameters = list(getattr(decoded.model.mask_decoder, part).parameters())
    kept = [parameter.clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1.5)
        logits, _, expected, _ = decoded(False)
        for parameter, old in zip(parameters, kept, strict=True):
            parameter.copy_(old)
    assert (logits - before).abs().max() > 1e-3
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_each_object_gets_the_best_of_its_three_masks(decoded: Any) -> None:
    """Scores that differ between objects: the last layer's bias prefers one mask after the other."""
    best = set()
    head = decoded.model.mask_decoder.iou_prediction_head.layers[-1]
    kept = head.bias.clone()
    for token in (1, 2, 3):
        with torch.no_grad():
            head.bias[token] += 100
            logits, scores, expected, expected_scores = decoded(True)
            head.bias.copy_(kept)
        assert logits.shape == (2, 1, 256, 256)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(scores, expected_scores, atol=1e-4, rtol=1e-5)
        best.add(float(logits.sum()))
    assert len(best) == 3
