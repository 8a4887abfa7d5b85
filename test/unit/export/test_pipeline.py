"""Steps that all exports have in common, with graphs that return zeros; failed and stopped exports change nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from support.contents import files_below  # noqa: E402
from support.tiny_models import Proved, Zeros, export_zeros  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam._common.signals import ends_by_interrupt  # noqa: E402
from triton_sam.errors import CheckpointError, ConfigurationError, ExportError  # noqa: E402
from triton_sam.export import onnx_tools, registry, tracing  # noqa: E402
from triton_sam.export.sam1 import Sam1Encoder  # noqa: E402
from triton_sam.export.sam2.graphs import Sam2Encoder  # noqa: E402
from triton_sam.export.settings import Settings  # noqa: E402
from triton_sam.families.sam2 import SAM2  # noqa: E402
from triton_sam.repository import BUILT_IN_CHECKPOINT, parse_config, weights_in  # noqa: E402
from triton_sam.repository import install as install_module  # noqa: E402
from triton_sam.repository.aliases import Alias, write_alias  # noqa: E402
from triton_sam.repository.install import staging  # noqa: E402
from triton_sam.repository.onnx_header import read_metadata  # noqa: E402
from triton_sam.repository.selection import read_repository, select_models, unloadable  # noqa: E402
from triton_sam.sessions.configs import video_program  # noqa: E402
from triton_sam.transport import Transport  # noqa: E402
from triton_sam.transport.url import parse_url  # noqa: E402


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A repository with an older model pair, which its bytes identify."""
    for role in ("encoder", "decoder"):
        folder = tmp_path / "repository" / f"sam2_{role}" / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(f"old {role}".encode())
        (folder.parent / "config.pbtxt").write_text(f"# old {role}\n")
    return tmp_path / "repository"


@pytest.mark.parametrize(
    ("length", "model", "words"),
    [(-200, None, "damaged"), (None, "configs/sam2.1/sam2.1_hiera_t.yaml", "does not fit SAM2 tiny: 4")],
    ids=["cut off", "of another size"],
)
def test_a_wrong_checkpoint_changes_nothing(
    old: Path, tmp_path: Path, length: int | None, model: str | None, words: str
) -> None:
    pytest.importorskip("sam2")
    checkpoint, before = tmp_path / "sam2.1_hiera_tiny.pt", files_below(old)
    torch.save({"model": {"weight": torch.ones(1000)}}, checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=words) as caught:
        registry.export("sam2", Settings(old, checkpoint=checkpoint, model=model, progress=False))
    assert "\n" not in str(caught.value)
    assert files_below(old) == before


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_while_writing_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_below(old)
    monkeypatch.setattr(onnx_tools, "write", full_disk)
    with pytest.raises(ExportError, match="No space left") as caught:
        export_zeros(old, progress=False)
    assert "\n" not in str(caught.value)
    assert files_below(old) == before


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_model_that_does_not_run_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    before, try_out = files_below(old), onnx_tools.try_out

    def refuse(path: Path) -> None:
        if role in path.parts[-3]:
            path.write_bytes(b"not a model")
        try_out(path)

    monkeypatch.setattr(onnx_tools, "try_out", refuse)
    with pytest.raises(ExportError, match="ONNX Runtime refuses"):
        export_zeros(old, progress=False)
    assert files_below(old) == before


def test_failure_without_a_repository_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_module, "_flush_folder", full_disk)
    with pytest.raises(ExportError, match="No space left"):
        export_zeros(tmp_path / "a" / "b", progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("model:\n  a: b: c", "line 2: mapping values are not allowed here"),
        ("a: [1,", "line 1: expected the node content"),
    ],
)
def test_a_configuration_that_is_no_yaml_names_the_line(tmp_path: Path, text: str, fault: str) -> None:
    pytest.importorskip("sam2")
    from triton_sam.export.sam2.recipe import EXPORTER

    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=f"mine.yaml is not a readable YAML file: {fault}"):
        EXPORTER.build(str(tmp_path / "mine.yaml"), 1024)


SIGNALS = [signal.SIGTERM, signal.SIGINT]


def write_until_stopped(model: Path, number: signal.Signals) -> None:
    with ends_by_interrupt(), staging(model) as folder:
        (folder / "model.onnx").write_bytes(b"half")
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), number)  # an impatient second signal during the clean-up


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_block_once_and_the_handlers_come_back(number: signal.Signals, tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a job in the background of a shell
    try:
        with pytest.raises(KeyboardInterrupt):
            write_until_stopped(tmp_path / "model", number)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[1])
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert list(tmp_path.iterdir()) == []


def export(repository: Path, checkpoint: Path | None = None, name: str = "sam2", **options: Any) -> int:
    """Export zeros as if they were the micro model; return the version."""
    source = {} if checkpoint is None else {"checkpoint": checkpoint}
    return export_zeros(repository, Proved(), name=name, **source, **options).version


def built_in(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    path = folder / f"{BUILT_IN_CHECKPOINT}.pt"
    path.write_bytes(content)
    return path


@pytest.mark.slow
def test_thresholds_of_a_search_are_in_the_metadata(tmp_path: Path) -> None:
    def metadata(name: str) -> dict[str, str]:
        return read_metadata(tmp_path / f"{name}_decoder" / "1" / "model.onnx")

    export(tmp_path, name="mine", thresholds={"pred_iou_thresh": 0.5})
    assert json.loads(metadata("mine")["triton_sam.everything"]) == {"pred_iou_thresh": 0.5}
    export(tmp_path, name="others")
    assert "triton_sam.everything" not in metadata("others")
    export(tmp_path, built_in(tmp_path / "weights", b"1"), "small")
    assert set(json.loads(metadata("small")["triton_sam.everything"])) == {"pred_iou_thresh", "stability_score_thresh"}


def test_an_export_into_a_new_folder_is_a_complete_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server loads all of it, with the session model, so that a click sends no embeddings."""
    export(tmp_path, progress=False)
    assert {model.name for model in select_models(tmp_path, None)} == {
        "sam2", "sam2_encoder", "sam2_decoder", "sam2_preprocess", "sam2_encoder_jpeg",
    }  # fmt: skip
    assert all(weights_in(tmp_path / name) for name in ("sam2", "sam2_preprocess"))
    assert not (tmp_path / "sam2_encoder_jpeg" / "SHA256SUMS").exists()
    export(tmp_path, name="mine")
    assert {model.name for model in select_models(tmp_path, ["mine"])} == {"mine", "mine_encoder", "mine_decoder"}
    assert "clicks" not in capsys.readouterr().err
    export(tmp_path, name="small", image_size=512)
    assert "clicks on images need an encoder of 1024 pixels" in capsys.readouterr().err
    assert not (tmp_path / "small").exists()


def test_an_export_of_another_size_writes_the_aliases_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, name="mine")
    write_alias(tmp_path, Alias("other_encoder", "mine_encoder"))
    export(tmp_path, name="mine")
    assert "other_encoder" not in capsys.readouterr().err
    export(tmp_path, name="mine", image_size=512)
    config = parse_config((tmp_path / "other_encoder/config.pbtxt").read_text())
    assert list(config.input[0].dims) == [-1, 3, 512, 512]
    assert "other_encoder, another name of mine_encoder, is written again: reload both" in capsys.readouterr().err


def test_an_export_with_required_inputs_has_no_defaults(tmp_path: Path) -> None:
    """Optimisers and ONNX Runtime in browsers remove inputs that have defaults."""
    export(tmp_path, name="web", required_inputs=True, progress=False)
    decoder = tmp_path / "web_decoder"
    session = onnxruntime.InferenceSession(decoder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_overridable_initializers() == []
    assert [node.name for node in session.get_inputs()][-2:] == ["mask_input", "has_mask_input"]
    assert "optional" not in (decoder / "config.pbtxt").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"web_encoder", "web_decoder"}


@pytest.mark.slow
def test_the_built_in_model_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository, checkpoint = tmp_path / "repository", built_in(tmp_path / "one", b"one")
    graph = repository / "sam2_encoder" / "1" / "model.onnx"
    assert export(repository, checkpoint) == 1
    assert export(repository, checkpoint) == 1
    before = graph.read_bytes()
    other = built_in(tmp_path / "other", b"trained further")
    assert export(repository) == 2  # random weights of the same size
    assert export(repository, other) == 2
    assert graph.read_bytes() == before
    assert export(repository, other, version=1) == 1
    digest = read_metadata(graph)["triton_sam.checkpoint_sha256"]
    assert digest == hashlib.sha256(b"trained further").hexdigest()
    assert digest not in before.decode("latin-1")
    assert export(repository, name="other") == 1
    assert export(repository, name="other") == 1


@pytest.mark.slow
def test_an_export_warns_of_a_newer_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = tmp_path / "my models"
    for version in (7, 3):
        export(repository, version=version, progress=False)
    export(repository, version=8)
    assert "not served" not in capsys.readouterr().err
    (repository / "sam2_decoder" / "new").mkdir()  # no version
    export(repository, version=7)
    line = capsys.readouterr().err.splitlines()[-1]
    folders = [repository / f"sam2_{role}" / "8" for role in ("encoder", "decoder")]
    removal = "rm -r " + " ".join(f"'{folder}'" for folder in folders)
    assert line == f"sam2: version 7 is not served: Triton serves the newest, 8. To serve version 7: {removal}"
    export(repository, version=1, progress=False)
    assert capsys.readouterr().err == ""


def test_the_official_model_is_gone_before_the_files_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check needs several times the memory of a file: the model beside it would cost gigabytes more."""
    models: weakref.WeakSet[Any] = weakref.WeakSet()

    class Watched(Zeros):
        def load(self, *_: Any, **__: Any) -> Any:
            model = torch.nn.Linear(1, 1)
            model.circle = [model]  # so that counting references does not release it
            models.add(model)
            return model

        def trace(self, model: Any, spec: Any, options: Any) -> Any:
            assert len(models) == 1
            return super().trace(model, spec, options)

    left = []
    for name in ("check", "try_out"):
        monkeypatch.setattr(onnx_tools, name, lambda _: left.append(len(models)))
    export_zeros(tmp_path, Watched(), progress=False)
    assert left == [0] * 4


def test_int8_names_the_folder_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ExportError, match=r"temporary files \(\$TMPDIR, else /tmp\): No such file"):
        export(tmp_path / "repository", precision="int8", progress=False)
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("encoder", [Sam1Encoder, Sam2Encoder])
def test_a_graph_is_traced_on_one_device(encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrappers have tensors that the model does not have. torch's meta device stands for a GPU."""
    traced: list[Any] = []

    def keep(module: Any, example: Any, **_: Any) -> Any:
        traced.append(module)
        return SimpleNamespace(model_proto=onnx.ModelProto())

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image_encoder = torch.nn.Linear(1, 1)

    monkeypatch.setattr(tracing, "export_program", keep)
    example = torch.zeros(2, 3, 32, 32, device="meta")
    tracing.trace(encoder(Model().to("meta")), SAM2.encoder, [example], {})
    tensors = [*traced[0].buffers(), *traced[0].parameters()]
    assert len(tensors) == 4
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# models for videos

ROLES = ("memory_attention", "memory_encoder", "tracking_decoder", "mask_prompt")


def test_the_video_model_appears_with_its_models(tmp_path: Path) -> None:
    found = export_zeros(tmp_path, Proved(), name="mine", video=True, image_size=512, progress=False)
    assert list(found.files) == ["encoder", "decoder", *ROLES]
    assert all(path.is_file() for path in found.files.values())
    assert (tmp_path / "mine_video" / "1" / "model.py").read_text() == video_program()
    config = parse_config((tmp_path / "mine_video" / "config.pbtxt").read_text())
    assert config.parameters["image_size"].string_value == "512"
    models = read_repository(tmp_path)
    assert unloadable(models) == {}
    assert models["mine_video"].dependencies(models) == {f"mine_{role}" for role in ("encoder", *ROLES)}
    found.files["mask_prompt"].unlink()
    assert unloadable(read_repository(tmp_path))["mine_video"] == "it calls mine_mask_prompt, which has no weights here"


@pytest.mark.slow
def test_a_server_loads_an_export_for_videos_into_a_copy_of_the_repository(tmp_path: Path) -> None:
    """The copy has models for images of 1024 pixels, and the demo model as version 1."""
    local_server = pytest.importorskip("triton_sam.local_server")
    for name in ("sam2", "sam2_encoder", "sam2_decoder", "sam2_preprocess", "sam2_encoder_jpeg"):
        shutil.copytree(bundled("model_repository") / name, tmp_path / name, ignore=shutil.ignore_patterns("[2-9]*"))
    export(tmp_path, name="sam2", video=True, image_size=512, progress=False)
    names = ["sam2_encoder_jpeg", "sam2_video"]
    with local_server.LocalServer(tmp_path, models=names) as server:
        assert {*names, "sam2_memory_attention"} <= {model.name for model in server.served_models()}
        transport = Transport(parse_url(server.http_url))
        image = np.array([(bundled("test/images") / "shapes.jpg").read_bytes()], np.object_)
        answer = transport.infer("sam2_encoder_jpeg", {"encoded_image": image}, ["image_embeddings", "image_size"])
        assert answer["image_embeddings"].shape == (1, 256, 32, 32)
        assert answer["image_size"].tolist() == [800, 600]
        transport.close()


@pytest.mark.slow
def test_a_pair_of_other_weights_beside_models_for_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, name="mine", video=True)
    export(tmp_path, name="mine")
    assert "other weights" not in capsys.readouterr().err
    export(tmp_path, name="mine", random_seed=1)
    metadata = read_metadata(tmp_path / "mine_encoder" / "1" / "model.onnx")
    assert metadata["triton_sam.checkpoint"] == "random seed 1"
    assert "mine_memory_attention, mine_memory_encoder" in (said := capsys.readouterr().err)
    assert "belong to other weights: export with --video too" in said
