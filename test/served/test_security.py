"""Attacks by a hostile caller, file or page that must fail: see the threat model in docs/background/security.md."""

import ast
import pickle
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

import triton_sam
from triton_sam._common.bundle import checkout
from triton_sam.cli import main
from triton_sam.download.catalogue import catalogue
from triton_sam.errors import CheckpointError, SamError
from triton_sam.inputs.embeddings import ImageEmbeddings

PACKAGE = Path(triton_sam.__file__).parent
SOURCES = list(PACKAGE.rglob("*.py"))
if checkout() is not None:
    SOURCES += (checkout() / "scripts").glob("*.py")
OUTSIDE = ["../evil", "..", "/etc/passwd", "a/../../b", "..\\evil", "a\x00b", "%2e%2e/evil"]


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple:
        return Path.write_text, (self.place, "caught")


# --- the source


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the package: file and line, the name that is called, the call."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{path.name}:{node.lineno}", ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> object:
    return next((ast.unparse(given.value) for given in call.keywords if given.arg == name), None)


def test_nothing_is_unpickled():
    loads = [(place, name, call) for place, name, call in calls() if name in ("torch.load", "np.load", "numpy.load")]
    assert len(loads) >= 4
    for place, name, call in loads:
        if name == "torch.load":
            assert keyword(call, "weights_only") == "True", place
        else:
            assert keyword(call, "allow_pickle") in (None, "False"), place  # False is NumPy's default
    assert not [place for place, name, _ in calls() if re.fullmatch(r"pickle\.loads?|\w*\.?Unpickler|yaml\.load", name)]


# --- files that others made


def test_a_checkpoint_runs_nothing(tmp_path):
    torch = pytest.importorskip("torch")
    from triton_sam.export.weights import read_state_dict

    caught = tmp_path / "caught"
    torch.save({"model": Trap(caught)}, tmp_path / "checkpoint.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"model": Trap(caught)}))
    for name in ("checkpoint.pt", "old.pt"):
        with pytest.raises(CheckpointError, match=r"'model' is not a tensor|not a readable PyTorch checkpoint"):
            read_state_dict(tmp_path / name, "triton-sam download")
    assert not caught.exists()
    torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    assert caught.exists()  # the trap would have worked


def test_saved_embeddings_run_nothing(tmp_path):
    import numpy as np

    caught = tmp_path / "caught"
    np.savez(tmp_path / "image.npz", image_embeddings=np.array([Trap(caught)], np.object_), allow_pickle=True)
    with pytest.raises(SamError):
        ImageEmbeddings.load(tmp_path / "image.npz")
    assert not caught.exists()


def test_every_download_is_encrypted_and_has_a_hash():
    for checkpoint in catalogue():
        assert checkpoint.url.startswith("https://")
        # The Hugging Face hub states the hash of its files at each download.
        is_of_hub = checkpoint.url.startswith("https://huggingface.co/")
        known = "sha256:[0-9a-f]{64}|(xxh128|md5):[0-9a-f]{32}"
        assert re.fullmatch(known, checkpoint.digest) or (is_of_hub and not checkpoint.digest)
        assert re.fullmatch(r"[\w.-]+", checkpoint.file_name)


# --- names that lead elsewhere


@pytest.mark.parametrize("name", OUTSIDE)
def test_commands_refuse_names_that_lead_elsewhere(tmp_path, monkeypatch, capsys, name):
    repository = tmp_path / "inner" / "models"
    repository.mkdir(parents=True)
    monkeypatch.setenv("TRITON_SAM_REPOSITORY", str(repository))
    for command in (
        ["alias", name, "--of", "sam2"],
        ["alias", "fine", "--of", name],
        ["export", "sam2", "--random", "0", "--name", name],
        ["config", name, "--accelerator", "none"],
        ["container", "--models", name],
        ["serve", "--models", name, "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"],
    ):
        assert main(command) in (1, 2), command
        error = capsys.readouterr().err
        assert error.startswith("triton-sam: error: "), command
        assert error.count("\n") == 1, command
    assert [path for path in tmp_path.rglob("*") if path not in (repository, repository.parent)] == []


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/live", "/static", "/healthy", "//", "/docs/x", "/v1/"])
def test_what_needs_the_token(path):
    from triton_sam.service.middleware import is_open

    assert not is_open(path)


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_service_takes_names_as_names(service, images, name):
    quoted = urllib.parse.quote(name, safe="").replace("..", "%2e%2e")  # the client would tidy dots away
    for answer in (
        service.http.get(f"/v1/images/{quoted}/preview"),
        service.http.post(f"/v1/images/{quoted}/segment", json={"points": [[1, 1]]}),
        service.http.get(f"/static/{quoted}"),
        service.http.get(f"/static/samples/{quoted}"),
    ):
        assert answer.status_code in (400, 404, 405, 415, 422) or answer.url.path == "/", answer.url
        assert "root:" not in answer.text
    content = (images / "shapes.jpg").read_bytes()
    answer = service.http.post("/embedded_model", files={"image": content}, data={"model_version": name})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_model")
    assert repr(name) in answer.json()["detail"]
