"""The model repository: its location, its models, their config.pbtxt, metadata of ONNX files, unreadable folders."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.errors import ConfigurationError, RepositoryError
from triton_sam.families.sam2 import SAM2
from triton_sam.repository import folder
from triton_sam.repository.config import config_for, parse_config
from triton_sam.repository.folder import default_repository, list_models, weights_in, writable_repository
from triton_sam.repository.names import check_name
from triton_sam.repository.onnx_header import read_metadata
from triton_sam.repository.selection import read_repository, select_models

COMMITTED = bundled("model_repository")
CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 0\n'


def varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def onnx_bytes(metadata: dict[str, str]) -> bytes:
    """Return a hand-written ModelProto: ir_version, a graph of zeros, metadata."""
    entries = [field(14, field(1, key.encode()) + field(2, value.encode())) for key, value in metadata.items()]
    return b"\x08\x0a" + field(7, bytes(5000)) + b"".join(entries)


def make_model(folder: Path, config: str | None = CONFIG, weights: bytes | None = None, version: str = "1") -> None:
    (folder / version).mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    if weights is not None:
        (folder / version / "model.onnx").write_bytes(weights)


def test_metadata_by_hand(tmp_path: Path) -> None:
    metadata = {"triton_sam.family": "sam2", "note": "ä" * 300}
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_bytes(metadata))
    assert read_metadata(path) == metadata


@pytest.mark.export
def test_metadata_as_the_onnx_package_writes_it(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], []))
    model.metadata_props.add(key="a", value="b")
    model.metadata_props.add(key="empty", value="")
    onnx.save_model(model, tmp_path / "model.onnx")
    assert read_metadata(tmp_path / "model.onnx") == {"a": "b", "empty": ""}


@pytest.mark.parametrize("content", [b"", b"\x00", b"<html>nothing</html>", b"\xff" * 40, onnx_bytes({})[:3000]])
def test_file_that_is_no_onnx_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ONNX|empty"):
        read_metadata(path)


def test_any_cut_ends_in_value_error(tmp_path: Path) -> None:
    path, content = tmp_path / "model.onnx", onnx_bytes({"key": "value"})
    whole = {len(content) - len(field(14, field(1, b"key") + field(2, b"value"))), 2}
    for length in [*range(1, 12), *range(len(content) - 20, len(content))]:
        path.write_bytes(content[:length])
        if length in whole:
            assert read_metadata(path) == {}
        else:
            with pytest.raises(ValueError, match="ONNX"):
                read_metadata(path)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a b", "a\n", "a\x00", "ä", "-x"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigurationError, match="model name"):
        check_name(name)


def test_default_repository_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_SAM_REPOSITORY", raising=False)
    assert default_repository().resolve() == COMMITTED.resolve()
    (tmp_path / "model_repository").mkdir()
    assert default_repository().resolve() == tmp_path / "model_repository"
    monkeypatch.setenv("TRITON_SAM_REPOSITORY", "elsewhere")
    assert default_repository() == Path("elsewhere")


def test_two_first_exports_of_a_wheel_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process makes the user's own repository while this one copies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_SAM_REPOSITORY", raising=False)
    monkeypatch.setattr(folder, "checkout", lambda: None)
    monkeypatch.setattr(folder, "data_folder", lambda: tmp_path / "data")
    make_model(tmp_path / "wheel" / "a", weights=b"ours")

    def bundled_meanwhile(_: str) -> Path:
        make_model(tmp_path / "data" / "model_repository" / "a", weights=b"theirs")
        return tmp_path / "wheel"

    monkeypatch.setattr(folder, "bundled", bundled_meanwhile)
    own = writable_repository()
    assert [path.read_bytes() for path in own.rglob("*.onnx")] == [b"theirs"]
    assert [path.name for path in own.parent.iterdir()] == ["model_repository"]


def test_list_tells_what_is_wrong(tmp_path: Path) -> None:
    make_model(tmp_path / "a_good", weights=onnx_bytes({"k": "v"}), version="3")
    make_model(tmp_path / "b_empty")
    make_model(tmp_path / "c_no_config", config=None, weights=onnx_bytes({}))
    make_model(tmp_path / "d_bad_config", config="input: nonsense {", weights=onnx_bytes({}))
    make_model(tmp_path / "e_renamed", config=f'name: "other"\n{CONFIG}', weights=onnx_bytes({}))
    make_model(tmp_path / "f_damaged", weights=b"<html>")
    make_model(tmp_path / "g_other_file", config=f'{CONFIG}default_model_filename: "x.onnx"', weights=onnx_bytes({}))
    (tmp_path / ".git").mkdir()
    models = {model.name[0]: model for model in list_models(tmp_path)}
    assert (models["a"].versions, models["a"].metadata, models["a"].problem) == ((3,), {"k": "v"}, "")
    assert (models["b"].has_weights, models["b"].problem) == (False, "")
    assert models["c"].problem == "no config.pbtxt"
    assert "not a valid config.pbtxt" in models["d"].problem
    assert "'other'" in models["e"].problem
    assert "not an ONNX model" in models["f"].problem
    assert "has no x.onnx" in models["g"].problem
    assert len(models) == 7


def test_weights_are_what_the_newest_version_holds(tmp_path: Path) -> None:
    assert weights_in(tmp_path) == []
    make_model(tmp_path, weights=b"x", version="9")
    assert weights_in(tmp_path) == [tmp_path / "9" / "model.onnx"]
    make_model(tmp_path, version="10")
    (tmp_path / "10" / ".gitkeep").touch()
    (tmp_path / "notes").mkdir()
    assert weights_in(tmp_path) == []
    (tmp_path / "10" / "model.savedmodel").mkdir()
    assert weights_in(tmp_path) == [tmp_path / "10" / "model.savedmodel"]


def test_committed_weights_are_small() -> None:
    sizes = [(COMMITTED / f"sam2_{role}" / "1" / "model.onnx").stat().st_size for role in ("encoder", "decoder")]
    assert sum(sizes) <= 16_000_000


def test_broken_config_text() -> None:
    with pytest.raises(RepositoryError, match=r"not a valid config\.pbtxt"):
        parse_config("platform: 1")


@pytest.mark.export
class TestConfigFor:
    @staticmethod
    def model(output_type: int | None = None, shape: tuple[int | str, ...] = ()) -> object:
        onnx = pytest.importorskip("onnx")
        kinds = onnx.TensorProto
        given = onnx.helper.make_tensor_value_info("x", kinds.INT64, ["n", 4])
        default = onnx.helper.make_tensor_value_info("y", kinds.FLOAT, [1])
        result = onnx.helper.make_tensor_value_info("z", output_type or kinds.BOOL, shape)
        start = onnx.helper.make_tensor("y", kinds.FLOAT, [1], [0.0])
        return onnx.helper.make_model(onnx.helper.make_graph([], "graph", [given, default], [result], [start]))

    def test_signature(self) -> None:
        config = parse_config(config_for(self.model(), "m_encoder", "other.onnx"))  # type: ignore[arg-type]
        assert config.name == "m_encoder"
        assert config.default_model_filename == "other.onnx"
        x, y = config.input
        assert (x.name, list(x.dims), x.optional) == ("x", [-1, 4], False)
        assert (y.name, list(y.dims), y.optional) == ("y", [1], True)
        assert list(config.output[0].dims) == [1]  # a scalar

    def test_type_that_triton_does_not_know(self) -> None:
        onnx = pytest.importorskip("onnx")
        with pytest.raises(RepositoryError, match="tensor z"):
            config_for(self.model(onnx.TensorProto.COMPLEX64), "m")  # type: ignore[arg-type]


def test_a_config_that_cannot_be_parsed_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    for name, text in (("broken", "input [{"), ("plain", 'backend: "python"'), ("empty", "# nothing\n")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").touch()
        (tmp_path / name / "config.pbtxt").write_text(text)
    models = read_repository(tmp_path)
    assert {name: bool(model.problem) for name, model in models.items()} == {
        "broken": True, "plain": False, "empty": False
    }  # fmt: skip
    assert [models[name].has_config for name in ("broken", "plain", "empty")] == [True, True, False]
    assert [model.name for model in select_models(tmp_path, None)] == ["broken", "empty", "plain"]
    assert not models["broken"].config_is_complete
    assert models["broken"].dependencies(models) == set()


@pytest.mark.parametrize(("checkpoint", "said"), [(SAM2.built_in, SAM2.built_in), ("sam2.1_hiera_large", None)])
def test_only_the_demo_model_names_its_checkpoint(checkpoint: str, said: str | None) -> None:
    """Triton tells clients the configuration of a model, but not the metadata of its graph."""
    onnx = pytest.importorskip("onnx")
    sides = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "graph", sides[:1], sides[1:])
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, {"triton_sam.checkpoint": checkpoint})
    parameters = parse_config(config_for(model, "sam2_encoder")).parameters
    assert (parameters["checkpoint"].string_value if "checkpoint" in parameters else None) == said


NOBODY = 65534
NO_WINDOWS = pytest.mark.skipif(os.name == "nt", reason="Windows has no permissions of this kind")


@pytest.fixture
def repository() -> Iterator[Path]:
    """Yield a repository with a good model, as a user who may not read all of it. Root may read everything."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for model in ("good", "secret", "half"):
            (root / model / "1").mkdir(parents=True)
            (root / model / "1" / "model.onnx").write_bytes(b"x")
            (root / model / "config.pbtxt").write_text('backend: "onnxruntime"')
        (root / "lost+found").mkdir()
        hidden = [root / "lost+found", root / "secret", root / "half" / "1"]
        for folder in hidden:
            folder.chmod(0)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(NOBODY)
        try:
            yield root
        finally:
            if was_root:
                os.seteuid(0)
            for folder in hidden:
                folder.chmod(0o755)


@NO_WINDOWS
def test_unreadable_folders_are_left_out_and_named(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert [model.name for model in select_models(repository, None)] == ["good"]
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [
        f"{repository}/{name} is left out: it cannot be read (Permission denied)"
        for name in ("half/1", "lost+found", "secret")
    ]
    assert [model.name for model in list_models(repository)] == ["good"]
    with pytest.raises(RepositoryError, match="no model 'secret'"):
        select_models(repository, ["secret"])


@NO_WINDOWS
def test_an_unreadable_repository_is_one_line(repository: Path) -> None:
    with pytest.raises(RepositoryError, match=r"lost\+found cannot be read: Permission denied"):
        read_repository(repository / "lost+found")
