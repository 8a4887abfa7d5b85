"""The pipeline of Ray Data without Ray: shards that are there, errors of actors, options."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.annotated import files_of, servers, write_data_set
from support.commands import call

from triton_sam.annotate import ray_engine
from triton_sam.errors import ConfigurationError, ServerUnreachableError

__all__ = ["servers"]


class FakeData(SimpleNamespace):
    """Stands for ray.data and its data sets: it runs the actor in this process."""

    rows: list[dict[str, Any]]

    def from_items(self, rows: list[dict[str, Any]], override_num_blocks: int) -> FakeData:
        assert override_num_blocks == len(rows)
        return FakeData(rows=rows)

    def map(self, kind: Any, fn_constructor_args: tuple[Any, ...], compute: int) -> FakeData:
        actor = kind(*fn_constructor_args)
        return FakeData(rows=[actor(row) for row in reversed(self.rows)])

    def iter_rows(self) -> Any:
        return iter(self.rows)

    @staticmethod
    def ActorPoolStrategy(size: int) -> int:  # noqa: N802 - Ray's name
        return size


class LostActorError(Exception):
    """Stands for ray.exceptions.RayError."""


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr(ray_engine, "_ray_data", FakeData)
    monkeypatch.setattr(ray_engine, "_cluster", lambda *_: contextlib.nullcontext(LostActorError))


def annotate(source: Path, out: Path, *options: str) -> int:
    return call(f"annotate {source} --with boxes --out {out} -q", *options)


def test_the_files_equal_those_of_threads(servers, ray, tmp_path):
    data = write_data_set(tmp_path / "in", 40)
    assert annotate(data, tmp_path / "threads") == 0
    assert annotate(data, tmp_path / "ray", "--engine", "ray", "--limit", "20") == 0
    assert annotate(data, tmp_path / "ray", "--engine", "ray") == 0
    assert annotate(data, tmp_path / "ray", "--engine", "ray") == 0
    assert files_of(tmp_path / "threads") == files_of(tmp_path / "ray")
    assert servers.requests.total() == 80


def test_errors_of_actors_are_errors_of_the_command(servers, ray, tmp_path, capsys):
    servers.failures["default"] = ServerUnreachableError("nothing answers at default")
    data = write_data_set(tmp_path / "in", 4)
    assert annotate(data, tmp_path / "out", "--engine", "ray") == 1
    assert capsys.readouterr().err.strip() == "triton-sam: error: nothing answers at default"


@pytest.mark.parametrize(("failures", "code"), [(2, 0), (3, 1)])
def test_the_pipeline_begins_again_when_ray_gives_up(failures, code, servers, ray, tmp_path, monkeypatch, capsys):
    """After each failure, only the shards that lack are filled."""
    pipelines = iter(range(failures))

    def rows(data: FakeData) -> Any:
        yield data.rows[0]
        if next(pipelines, None) is not None:
            raise LostActorError("the actor died\nfor ever")
        yield from data.rows[1:]

    monkeypatch.setattr(FakeData, "iter_rows", rows)
    data = write_data_set(tmp_path / "in", 80)
    assert annotate(data, tmp_path / "out", "--engine", "ray") == code
    error = capsys.readouterr().err.strip()
    assert error == ("triton-sam: error: Ray gave up 3 times: the actor died" if code else "")


@pytest.mark.parametrize(("address", "failures", "calls"), [(None, 2, 3), (None, 3, 3), ("host:1", 1, 1)])
def test_ray_that_takes_too_long_to_start_is_started_again(monkeypatch, address, failures, calls):
    made = []

    def init(**_: Any) -> None:
        made.append(1)
        if len(made) <= failures:
            raise Exception("The current node timed out during startup.")  # noqa: TRY002 - as Ray does

    context = SimpleNamespace(enable_progress_bars=True)
    data = SimpleNamespace(DataContext=SimpleNamespace(get_current=lambda: context))
    errors = SimpleNamespace(RayError=LostActorError)
    fake: Any = SimpleNamespace(init=init, shutdown=lambda: None, data=data, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with contextlib.ExitStack() as stack:
        if failures == calls:
            stack.enter_context(pytest.raises(ConfigurationError, match="timed out during startup"))
        with ray_engine._cluster(address, 1) as kind:
            assert kind is LostActorError
    assert len(made) == calls


def test_a_full_disk_of_an_actor_is_an_error_of_the_disk():
    error = ray_engine._error_of({"shard": 1, "error": "OSError", "message": "[Errno 28] No space left"})
    assert isinstance(error, OSError)
    assert "No space left" in str(error)
