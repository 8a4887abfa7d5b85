"""`triton-sam setup` from the download of a checkpoint to the exported models, for the small families."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]  # an export of the official size takes most of a minute
torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

from support.file_server import Server  # noqa: E402

from triton_sam.cli import main  # noqa: E402
from triton_sam.download import catalogue  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.families import get_family  # noqa: E402
from triton_sam.families.tables import Checkpoint  # noqa: E402
from triton_sam.repository.onnx_header import read_metadata  # noqa: E402


@pytest.mark.parametrize(
    ("family", "package"),
    [
        pytest.param("edgetam", "timm", marks=pytest.mark.nightly),
        pytest.param("mobilesam", "mobile_sam", marks=pytest.mark.nightly),
        pytest.param("samhq", "segment_anything_hq", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.usefixtures("clean_environment")
def test_setup_downloads_and_exports(
    family: str, package: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    size = get_family(family).default_size
    model = registry.exporter(family).load(None, size, image_size=1024, random_seed=3)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    server.content = stream.getvalue()
    server.where = f"/files/{family}_{size}.pt"  # the size of SAM-HQ is chosen by the name
    digest = hashlib.sha256(server.content).hexdigest()
    entry = Checkpoint(family, size, f"{server.url}{server.where}", len(server.content), digest)
    monkeypatch.setattr(catalogue, "catalogue", lambda: (entry,))
    monkeypatch.chdir(tmp_path)
    assert main(["setup", family, "--model-repository", str(tmp_path / "models"), "-q"]) == 0
    files = {role: tmp_path / "models" / f"{family}_{role}" / "1" / "model.onnx" for role in ("encoder", "decoder")}
    for file in files.values():
        assert read_metadata(file)["triton_sam.checkpoint_sha256"] == digest
    # Weights of another seed would give other embeddings.
    image = np.random.default_rng(0).random((1, 3, 1024, 1024), np.float32)
    encoder = onnxruntime.InferenceSession(files["encoder"])
    found = encoder.run(None, {encoder.get_inputs()[0].name: image})[0]
    graph = registry.exporter(family).trace(model, get_family(family).encoder, {})
    expected = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, {encoder.get_inputs()[0].name: image})
    np.testing.assert_allclose(found, expected[0], atol=1e-4)
