"""SAM2's encoder as a module: the official features, from fewer convolutions."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sam2")

from triton_sam.export.sam2 import recipe as sam2  # noqa: E402
from triton_sam.export.sam2.graphs import Sam2Encoder  # noqa: E402
from triton_sam.repository import BUILT_IN_CHECKPOINT  # noqa: E402

pytestmark = pytest.mark.export

SIDE = 128
OFFICIAL_LEVELS, ALL_LEVELS = [2, 3], [0, 1, 2, 3]


@pytest.fixture(scope="module")
def model():
    return sam2.load_model(None, f"{BUILT_IN_CHECKPOINT}.yaml", image_size=SIDE, random_seed=0)


@pytest.mark.parametrize("levels", [OFFICIAL_LEVELS, ALL_LEVELS])
def test_the_features_are_those_of_the_official_model(model, levels, monkeypatch):
    monkeypatch.setattr(model.image_encoder.neck, "fpn_top_down_levels", levels)
    image = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    encoder = Sam2Encoder(model)
    with torch.no_grad():
        found = encoder(image)
        official = model.forward_image((image - encoder.mean) / encoder.std)["backbone_fpn"]
    expected = official[2] + model.no_mem_embed.reshape(1, -1, 1, 1), official[0], official[1]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=1e-5)
        assert float(theirs.std()) > 1e-3
