"""A run as a pipeline of Ray Data, for clusters: a pool of actors fills the shards.

Each actor reads the source and the prompts, has its own clients, and writes its shards into the folder of the run. All
nodes therefore need the package, the images and the folder at the same paths. If an actor or its node dies, Ray
reassigns the shard; existing shards are not filled again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import errors
from .._common.extras import missing
from .._common.text import first_line
from ..errors import ConfigurationError, SamError, ServerError
from .folder import ImageRecord, RunFolder, Shard
from .job import Job, is_ready
from .run import annotate

SHARD, ERROR, MESSAGE = "shard", "error", "message"
"""The columns of the pipeline."""
DEFAULT_ACTORS = 2
ATTEMPTS = 3
"""Ray cannot restart every actor that dies (its issue 53727). The pipeline then restarts with the missing shards."""


def annotate_with_ray(
    folder: RunFolder,
    shards: Sequence[Shard],
    job: Job,
    *,
    actors: int,
    threads: int,
    address: str | None,
    done: Callable[[ImageRecord], None],
) -> None:
    """Annotate the images of shards that are missing in the folder.

    Args:
        address: address of a running cluster, as for ray.init(); None: start Ray on this machine for this run.
    """
    data = ray_data()
    images = dict(shards)
    left = {number for number, wanted in shards if folder.state(number, wanted)[1]}
    for number in images.keys() - left:
        _report(folder, number, images, done)
    if not left:
        return
    count = sum(len(wanted) for wanted in images.values())
    filler = (job, folder.folder.absolute(), folder.parameters, count, threads)
    with _cluster(address, actors) as failures:
        for attempt in range(ATTEMPTS):
            try:
                for row in _rows(data, sorted(left), filler, min(actors, len(left))):
                    if row[ERROR]:
                        raise _error_of(row)
                    _report(folder, row[SHARD], images, done)
                    left.discard(row[SHARD])
                return
            except failures as error:
                if attempt + 1 == ATTEMPTS:
                    raise ServerError(f"Ray failed {ATTEMPTS} times: {first_line(error)}") from error


def _rows(data: Any, numbers: Sequence[int], filler: tuple[Any, ...], actors: int) -> Iterable[Mapping[str, Any]]:
    items = data.from_items([{SHARD: number} for number in numbers], override_num_blocks=len(numbers))
    filled = items.map(_Filler, fn_constructor_args=filler, compute=data.ActorPoolStrategy(size=actors))
    rows: Iterable[Mapping[str, Any]] = filled.iter_rows()
    return rows


class _Filler:
    """An actor, which fills one shard at a time."""

    def __init__(self, job: Job, path: Path, parameters: Mapping[str, Any], count: int, threads: int) -> None:
        inputs = job.read()
        plain = {name: value for name, value in parameters.items() if name != "shard_size"}
        self._folder = RunFolder(path, plain, inputs.items, parameters["shard_size"])
        self._shards = dict(self._folder.shards(inputs.items[:count]))
        self._work = job.work(inputs)
        self._stack = contextlib.ExitStack()
        self._workers = self._stack.enter_context(job.clients()) * threads

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        number = int(row[SHARD])
        try:
            annotate(self._folder, [(number, self._shards[number])], self._work, self._workers, is_ready=is_ready)
        except SamError as error:
            return {SHARD: number, ERROR: type(error).__name__, MESSAGE: str(error)}
        except OSError as error:
            return {SHARD: number, ERROR: OSError.__name__, MESSAGE: str(error)}
        return {SHARD: number, ERROR: "", MESSAGE: ""}


def _report(
    folder: RunFolder, number: int, images: Mapping[int, Sequence[Any]], done: Callable[[ImageRecord], None]
) -> None:
    records, _ = folder.state(number, images[number])
    for item in images[number]:
        done(records[item.id])


def _error_of(row: Mapping[str, Any]) -> Exception:
    """Convert the error of an actor to an exception of this process."""
    if row[ERROR] == OSError.__name__:
        return OSError(row[MESSAGE])
    kind = getattr(errors, row[ERROR], ServerError)
    error: Exception = kind(row[MESSAGE])
    return error


@contextlib.contextmanager
def _cluster(address: str | None, actors: int) -> Iterator[type[Exception]]:
    """Connect to a cluster while the block runs; yield the class of Ray's errors."""
    import ray

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"num_cpus": actors + 1, "include_dashboard": False}
    _start(ray, address, options)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    try:
        yield ray.exceptions.RayError
    finally:
        ray.shutdown()


def _start(ray: Any, address: str | None, options: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start Ray on this machine. A start times out after 30 s and is repeated."""
    for attempt in range(ATTEMPTS):
        try:
            ray.init(address=address or "local", **options)
            return
        except Exception as error:  # Ray raises a plain Exception if its processes start too slowly
            ray.shutdown()
            if address is not None or attempt + 1 == ATTEMPTS:
                reason = " ".join(str(error).split())
                where = address or "this machine"
                raise ConfigurationError(f"there is no Ray cluster at {where}: {reason[:200]}") from error


def ray_data() -> Any:
    try:
        import ray.data
    except ImportError as error:
        raise missing("--engine ray needs", "ray", error) from error
    return ray.data
