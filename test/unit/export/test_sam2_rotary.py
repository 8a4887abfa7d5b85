"""The attention to memories: the official results, from products with as few channels as possible."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sam2")

from sam2.modeling.sam.transformer import RoPEAttention  # noqa: E402

from triton_sam.export.sam2 import memory_graphs  # noqa: E402

pytestmark = pytest.mark.export

SIDE, CHANNELS, MEMORY_CHANNELS = 4, 32, 8


@pytest.mark.parametrize(("inner", "value_channels"), [(32, MEMORY_CHANNELS), (4, 4)])
def test_values_are_projected_where_they_are_narrow(inner, value_channels, monkeypatch):
    torch.manual_seed(0)
    options = {"rope_k_repeat": True, "feat_sizes": (SIDE, SIDE), "kv_in_dim": MEMORY_CHANNELS}
    official = RoPEAttention(CHANNELS, 1, downsample_rate=CHANNELS // inner, **options)
    image, memory = torch.randn(1, SIDE**2, CHANNELS), torch.randn(1, 2 * SIDE**2, MEMORY_CHANNELS)
    channels = []

    def attend(query, key, value, heads):
        channels.append(value.shape[-1])
        return (query @ key.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(-1) @ value

    monkeypatch.setattr(memory_graphs, "attend", attend)
    turns = official.compute_cis(end_x=SIDE, end_y=SIDE)
    rotation = turns.real, turns.imag
    with torch.no_grad():
        expected = official(image, memory, memory)
        for fused in (True, False):
            ours = memory_graphs._RotaryAttention(official, fused)
            frames = memory.unflatten(1, (2, SIDE**2))
            key = ours.key(frames, rotation).flatten(1, 2)
            found = ours.attend(ours.query(image, rotation), key, memory)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert channels == [value_channels]
