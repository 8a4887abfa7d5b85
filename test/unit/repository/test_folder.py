"""The model repository: its location, its models, their config.pbtxt, metadata of ONNX files, unreadable folders."""

import errno
import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.errors import ConfigurationError, RepositoryError
from triton_sam.families import get_family, pair_names
from triton_sam.families.sam2 import SAM2
from triton_sam.repository import folder
from triton_sam.repository.config import check_name, config_for, parse_config
from triton_sam.repository.folder import default_repository, list_models, weights_in, writable_repository
from triton_sam.repository.onnx_header import read_metadata
from triton_sam.repository.selection import read_repository, select_models
from triton_sam.sessions.configs import write_programs

COMMITTED = bundled("model_repository")
CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 0\n'


def varint(value):
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def onnx_bytes(metadata):
    """Return a hand-written ModelProto: ir_version, a graph of zeros, metadata."""
    entries = [field(14, field(1, key.encode()) + field(2, value.encode())) for key, value in metadata.items()]
    return b"\x08\x0a" + field(7, bytes(5000)) + b"".join(entries)


def make_model(folder, config=CONFIG, weights=None, version="1"):
    (folder / version).mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    if weights is not None:
        (folder / version / "model.onnx").write_bytes(weights)


@pytest.mark.export
def test_metadata_as_the_onnx_package_writes_it(tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], []))
    model.metadata_props.add(key="a", value="b")
    model.metadata_props.add(key="empty", value="")
    model.metadata_props.add(key="note", value="ä" * 300)
    onnx.save_model(model, tmp_path / "model.onnx")
    assert read_metadata(tmp_path / "model.onnx") == {"a": "b", "empty": "", "note": "ä" * 300}


@pytest.mark.parametrize("content", [b"", b"\x00", b"<html>nothing</html>", b"\xff" * 40, onnx_bytes({})[:3000]])
def test_file_that_is_no_onnx_model(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ONNX|empty"):
        read_metadata(path)


def test_any_cut_ends_in_value_error(tmp_path):
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
def test_bad_names(name):
    with pytest.raises(ConfigurationError, match="model name"):
        check_name(name)


def test_default_repository_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_SAM_REPOSITORY", raising=False)
    assert default_repository().resolve() == COMMITTED.resolve()
    (tmp_path / "model_repository").mkdir()
    assert default_repository().resolve() == tmp_path / "model_repository"
    monkeypatch.setenv("TRITON_SAM_REPOSITORY", "elsewhere")
    assert default_repository() == Path("elsewhere")


def test_two_first_exports_of_a_wheel_at_a_time(tmp_path, monkeypatch):
    """The other process makes the user's own repository while this one copies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_SAM_REPOSITORY", raising=False)
    monkeypatch.setattr(folder, "checkout", lambda: None)
    monkeypatch.setattr(folder, "data_folder", lambda: tmp_path / "data")
    make_model(tmp_path / "wheel" / "a", weights=b"ours")

    def bundled_meanwhile(_):
        make_model(tmp_path / "data" / "model_repository" / "a", weights=b"theirs")
        return tmp_path / "wheel"

    monkeypatch.setattr(folder, "bundled", bundled_meanwhile)
    own = writable_repository()
    assert [path.read_bytes() for path in own.rglob("*.onnx")] == [b"theirs"]
    assert [path.name for path in own.parent.iterdir()] == ["model_repository"]


def test_the_first_export_of_a_wheel_names_a_full_disk_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_SAM_REPOSITORY", raising=False)
    monkeypatch.setattr(folder, "checkout", lambda: None)
    monkeypatch.setattr(folder, "data_folder", lambda: tmp_path / "data")
    monkeypatch.setattr(folder, "bundled", lambda _: tmp_path / "wheel")
    make_model(tmp_path / "wheel" / "a", weights=b"ours")
    (tmp_path / "wheel" / "a" / "1" / "__pycache__").mkdir()  # of pip

    def full(source, target, **_):
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(RepositoryError) as caught:
            writable_repository()
    assert str(caught.value) == f"cannot copy the demo model to {tmp_path / 'data'}: No space left on device"
    assert {path.name for path in (writable_repository() / "a").rglob("*")} == {"config.pbtxt", "1", "model.onnx"}


def test_list_tells_what_is_wrong(tmp_path):
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


def test_weights_are_what_the_newest_version_holds(tmp_path):
    assert weights_in(tmp_path) == []
    make_model(tmp_path, weights=b"x", version="9")
    assert weights_in(tmp_path) == [tmp_path / "9" / "model.onnx"]
    make_model(tmp_path, version="10")
    (tmp_path / "10" / ".gitkeep").touch()
    (tmp_path / "notes").mkdir()
    assert weights_in(tmp_path) == []
    (tmp_path / "10" / "model.savedmodel").mkdir()
    assert weights_in(tmp_path) == [tmp_path / "10" / "model.savedmodel"]
    committed = [weight for role in ("encoder", "decoder") for weight in weights_in(COMMITTED / f"sam2_{role}")]
    assert 0 < sum(weight.stat().st_size for weight in committed) <= 16_000_000


def graph_of(output_type=None, shape=()):
    onnx = pytest.importorskip("onnx")
    kinds = onnx.TensorProto
    given = onnx.helper.make_tensor_value_info("x", kinds.INT64, ["n", 4])
    default = onnx.helper.make_tensor_value_info("y", kinds.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("z", output_type or kinds.BOOL, shape)
    start = onnx.helper.make_tensor("y", kinds.FLOAT, [1], [0.0])
    return onnx.helper.make_model(onnx.helper.make_graph([], "graph", [given, default], [result], [start]))


@pytest.mark.export
def test_a_config_has_the_signature_of_its_graph():
    config = parse_config(config_for(graph_of(), "m_encoder", "other.onnx"))
    assert (config.name, config.default_model_filename) == ("m_encoder", "other.onnx")
    found = [(each.name, list(each.dims), each.optional) for each in config.input]
    assert found == [("x", [-1, 4], False), ("y", [1], True)]
    assert list(config.output[0].dims) == [1]  # a scalar
    with pytest.raises(RepositoryError, match="tensor z"):  # Triton does not know its type
        config_for(graph_of(pytest.importorskip("onnx").TensorProto.COMPLEX64), "m")


@pytest.mark.parametrize(("checkpoint", "said"), [(SAM2.built_in, SAM2.built_in), ("sam2.1_hiera_large", None)])
def test_only_the_demo_model_names_its_checkpoint(checkpoint, said):
    """Triton tells clients the configuration of a model, but not the metadata of its graph."""
    model = graph_of()
    pytest.importorskip("onnx").helper.set_model_props(model, {"triton_sam.checkpoint": checkpoint})
    parameters = parse_config(config_for(model, "sam2_encoder")).parameters
    assert (parameters["checkpoint"].string_value if "checkpoint" in parameters else None) == said


NOBODY = 65534


@pytest.fixture
def repository():
    """Yield a repository with a good model, as a user who may not read all of it. Root may read everything."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for model in ("good", "secret", "half"):
            make_model(root / model, weights=b"x")
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


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permissions of this kind")
def test_unreadable_folders_are_left_out_and_named(repository, caplog):
    with caplog.at_level(logging.WARNING):
        assert [model.name for model in select_models(repository, None)] == ["good"]
        assert [model.name for model in list_models(repository)] == ["good"]
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [
        f"{repository}/{name} is left out: it cannot be read (Permission denied)"
        for name in ("half/1", "lost+found", "secret")
    ]
    with pytest.raises(RepositoryError, match="no model 'secret'"):
        select_models(repository, ["secret"])
    with pytest.raises(RepositoryError, match=r"lost\+found cannot be read: Permission denied"):
        read_repository(repository / "lost+found")


# The choice of the models that a server loads. test/served/test_local_server.py has more, with real folders


def add_models(repository, *names):
    for name in names:
        make_model(repository / name, weights=b"")


def selected(repository, name):
    return {model.name for model in select_models(repository, [name])}


def test_a_variant_without_a_session_model_is_its_pair(tmp_path):
    """Exports of earlier versions wrote none under a name of their own."""
    add_models(tmp_path, *pair_names("mine"))
    assert [model.name for model in select_models(tmp_path, ["mine"])] == ["mine_encoder", "mine_decoder"]
    write_programs(tmp_path, get_family("sam1"), "mine")
    assert selected(tmp_path, "mine") == {"mine", "mine_encoder", "mine_decoder"}
    with pytest.raises(RepositoryError, match="no model 'other'"):
        selected(tmp_path, "other")


def test_a_variant_with_a_session_model_brings_its_video_model(tmp_path):
    family = get_family("sam2")
    names = {family.model_name(role, "mine") for role in family.every_model}
    add_models(tmp_path, *names)
    write_programs(tmp_path, family, "mine")
    assert selected(tmp_path, "mine") == {*names, "mine", "mine_video"}
    (tmp_path / "mine_memory_encoder/1/model.onnx").unlink()
    assert selected(tmp_path, "mine") == {"mine", "mine_encoder", "mine_decoder"}


def test_a_variant_for_videos_brings_all_its_models(tmp_path):
    """Clients click on images of the official size, so a variant of another size has no session model."""
    family = get_family("sam2").at(512)
    names = [family.model_name(role, "small") for role in family.models_for(video=True, concepts=False)]
    add_models(tmp_path, *names)
    write_programs(tmp_path, family, "small")
    assert selected(tmp_path, "small") == {*names, "small_video"}
    (tmp_path / "small_decoder/1/model.onnx").unlink()
    with pytest.raises(RepositoryError, match="'small_decoder' has no weights"):
        selected(tmp_path, "small")


@pytest.mark.parametrize(
    ("model", "command"),
    [
        ("sam2", "setup sam2`"),
        ("sam2_encoder", "setup sam2`"),
        ("sam2_video", "setup sam2 --video`"),
        ("sam2_memory_attention", "setup sam2 --video`"),
        ("sam3_detector", "setup sam3 --concepts`"),
    ],
)
def test_the_error_for_an_absent_model_names_the_command_that_writes_it(tmp_path, model, command):
    with pytest.raises(RepositoryError, match=f"write them with `triton-sam {command}"):
        selected(tmp_path, model)
