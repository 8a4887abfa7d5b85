"""The server that a benchmark measures, the weights of its models, and the counts and times that it reports.

Triton's statistics of a session model are wrong. Its statistics of a decoder exclude clicks on a session model that
runs the decoder in its own process.
"""

from __future__ import annotations

import itertools
import re
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from .._common.bundle import bundled
from ..client.sync import EmbeddingsPlace, SAM2TritonClient
from ..errors import ConfigurationError, MissingDependencyError, ModelNotReadyError, RepositoryError
from ..families import Family, get_family
from ..inputs.images import ImageSource, image_bytes, open_image
from ..repository.folder import list_models
from ..sessions.configs import write_programs
from ..transport.probe import read_metrics
from ..transport.triton import Transport
from ..transport.url import parse_url
from ..wire.pair import ModelPair

if TYPE_CHECKING:
    from ..export.reference import ConceptReference, Reference


_SAMPLE = re.compile(r'(?m)^triton_sam_(\w+)\{(?:[^}]*,)?model="([^"]*)"[^}]*\} (\S+)$')
_PATIENCE = 2.0
"""Maximum delay in seconds until a server has counted an answered request."""


def session_metrics(metrics_url: str | None, model: str) -> dict[str, float]:
    """Return the metrics of a session model, summed over all kinds of requests.

    Args:
        metrics_url: URL of the server's metrics, such as http://host:8002/metrics; None if unknown.

    Returns:
        Values by name without the prefix ``triton_sam_``; empty if the server reports none.
    """
    found: defaultdict[str, float] = defaultdict(float)
    text = None if metrics_url is None else read_metrics(metrics_url)
    try:
        for name, owner, value in _SAMPLE.findall(text or ""):
            if owner == model:
                found[name] += float(value)
    except ValueError:
        return {}
    return dict(found)


def decode_counter(
    transport: Transport, decoder: str, session_model: str, metrics_url: str | None, click: Callable[[], object]
) -> Callable[[], int | None]:
    """Return a function that reads the number of decodes of a server so far.

    Args:
        click: sends a click and waits for its mask, to detect which count grows.

    Returns:
        The function. It returns None if no reported count grows.
    """
    counts: list[Callable[[], int]] = [
        lambda: int(transport.statistics(decoder)["inference_count"]),
        lambda: int(session_metrics(metrics_url, session_model).get("decodes_total", 0)),
    ]
    before = [count() for count in counts]
    click()
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        for count, least in zip(counts, before, strict=True):
            if count() > least:
                return count
        time.sleep(0.05)
    return lambda: None


RANDOM_SEED = 0
BUILT_IN = "micro"
"""The value of --weights for the demo model of a family, or for its fastest size with random weights."""


@dataclass(frozen=True)
class Weights:
    """A pair of models in a repository, and the settings to build the official model with the same weights.

    Args:
        name: variant of the pair; None: the family's name.
        checkpoint: file with the weights; None: random or unknown weights.
        config: configuration of the official model; None: chosen by the checkpoint's name.
    """

    repository: Path
    name: str | None
    files: Mapping[str, Path]
    metadata: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Path | None = None
    config: str | None = None
    seed: int | None = None

    def describe(self) -> str:
        config = self.metadata.get("triton_sam.config", "unknown")
        made_of = self.metadata.get("triton_sam.checkpoint", "unknown weights")
        return made_of if made_of == config else f"{config}, {made_of}"

    def reference(self, family: str) -> Reference:
        """Build the official predictor."""
        model = self._official_model(family)
        from ..export import registry

        exporter, built = registry.official(family, self.checkpoint, model, self.seed)
        return exporter.reference(built)

    def concept_reference(self, family: str) -> ConceptReference:
        """Build the official detector of words; see reference()."""
        model = self._official_model(family)
        from ..export import registry
        from ..export.settings import Settings

        exporter, built = registry.official(family, self.checkpoint, model, self.seed)
        settings = Settings(Path(), checkpoint=self.checkpoint, model=model, random_seed=self.seed, concepts=True)
        return exporter.concept_reference(built, settings)

    def _official_model(self, family: str) -> str | None:
        if self.checkpoint is None and self.seed is None:
            raise MissingDependencyError(f"the checkpoint of {self.describe()} is not here: give --weights FILE")
        return get_family(family).model_of_config(self.config) if self.config else None


def find_weights(family: str, repository: Path, name: str | None, *, concepts: bool = False) -> Weights | None:
    """Return the newest version of a family's models in a repository; None without weights."""
    spec = get_family(family)
    models = {model.name: model for model in list_models(repository)}
    files: dict[str, Path] = {}
    metadata: dict[str, str] = {}
    for role, model_spec in spec.models_for(video=False, concepts=concepts).items():
        model = models.get(spec.model_name(role, name))
        if model is None or not model.has_weights:
            return None
        files[role] = repository / model.name / str(model.versions[-1]) / model_spec.filename
        metadata = metadata or model.metadata
    made_of, config = metadata.get("triton_sam.checkpoint", ""), metadata.get("triton_sam.config")
    seed = re.fullmatch(r"random seed (\d+)", made_of)
    if seed:
        return Weights(repository, name, files, metadata, None, config, int(seed[1]))
    return Weights(repository, name, files, metadata, _checkpoint(made_of), None)


def make_weights(family: str, text: str, folder: Path, progress: bool, *, concepts: bool = False) -> Weights:
    """Create a repository of one pair with its session model."""
    if text == BUILT_IN and get_family(family).built_in:
        _copy_built_in(get_family(family), folder)
    else:
        _export(family, text, folder, progress, concepts)
    write_programs(folder, get_family(family), video=False)
    weights = find_weights(family, folder, None)
    if weights is None:
        raise RepositoryError(f"the export of {text} left no models in {folder}")
    if weights.seed is None and text != BUILT_IN:
        return Weights(folder, None, weights.files, weights.metadata, Path(text), None)
    return weights


def _copy_built_in(family: Family, folder: Path) -> None:
    for role in family.models:
        source = bundled("model_repository") / family.model_name(role)
        (folder / source.name).mkdir(parents=True)
        shutil.copytree(source / "1", folder / source.name / "1")
        shutil.copy2(source / "config.pbtxt", folder / source.name)


def _export(family: str, text: str, folder: Path, progress: bool, concepts: bool) -> None:
    from ..export import registry
    from ..export.settings import Settings

    kind, _, size = text.partition(":")
    if text == BUILT_IN:
        kind, size = "random", get_family(family).quick_size
    if kind == "random":
        model = get_family(family).find_size(size).model
        random = Settings(folder, model=model, random_seed=RANDOM_SEED, progress=progress, concepts=concepts)
        registry.export(family, random)
        return
    if not Path(text).exists():
        raise ConfigurationError(f"--weights {text}: no such file; or {BUILT_IN}, or random:SIZE")
    registry.export(family, Settings(folder, checkpoint=Path(text), progress=progress, concepts=concepts))


def _checkpoint(name: str) -> Path | None:
    """Return the file of a downloaded checkpoint; None if it does not exist."""
    folders = (Path("checkpoints"), bundled("checkpoints"))
    files = [folder / f"{name}{ending}" for folder in folders for ending in (".pt", ".pth")]
    return next((file for file in files if file.is_file()), None)


Box = tuple[float, float, float, float]
Point = tuple[float, float]


@dataclass
class Target:
    """A server to measure.

    Args:
        name: variant of the model pair; None means the family's default pair.
        weights: the same models as files, for the comparison; None if unknown.
        pid: process id of tritonserver; None for a remote server.
        metrics_url: URL of the server's metrics; None if unknown.
        access: the arguments headers and ca_certs of every client, for a proxy in front of the server.

    Attributes:
        has_session: whether the server has a session model for the pair, after check().
    """

    family: str
    name: str | None
    urls: dict[str, str]
    source: ImageSource
    weights: Weights | None = None
    pid: int | None = None
    timeout: float = 300.0
    access: Mapping[str, Any] = field(default_factory=dict)
    metrics_url: str | None = None
    content: bytes = field(init=False, repr=False)
    image: Image.Image = field(init=False, repr=False)
    has_session: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.content = image_bytes(self.source)
        self.image = open_image(self.content)
        self.pair = ModelPair(get_family(self.family), self.name)
        self._transport = Transport(parse_url(self.urls[self.protocols[0]]), timeout=self.timeout, **self.access)
        self._content_numbers: Iterator[int] = itertools.count()
        self._salt = secrets.token_bytes(8)

    @property
    def protocols(self) -> list[str]:
        """The protocols to measure, in the order of `urls`."""
        return list(self.urls)

    @property
    def who(self) -> str:
        """The contender in rows about the server."""
        return "session" if self.has_session else "request"

    def check(self) -> None:
        """Check that the server has the model pair, and whether it has a session model."""
        ready = self._transport.ready_models()
        missing = [model for model in (self.pair.encoder, self.pair.decoder) if model not in ready]
        if missing:
            url = self.urls[self.protocols[0]]
            raise ModelNotReadyError(
                f"{url} has no model {missing[0]!r} ready: `triton-sam models --url {url}` lists its models"
            )
        self.has_session = self.pair.session_model in ready

    def finds_concepts(self) -> bool:
        """Return whether the server has all models that find words."""
        family, ready = self.pair.family, self._transport.ready_models()
        return all(family.model_name(role, self.name) in ready for role in family.concepts)

    def server_version(self) -> str:
        return self._transport.server_version()

    def statistics(self, model: str) -> dict[str, float]:
        """Return totals of a model so far. Totals of the session model come from its metrics.

        Returns:
            The number of inferences as "count", and the total seconds in "queue" and "compute"; empty for a session
            model whose metrics are not available.
        """
        if model == self.pair.session_model:
            own = session_metrics(self.metrics_url, model)
            if "request_seconds_count" not in own:
                return {}
            waited, took = own["waiting_seconds_sum"], own["request_seconds_sum"]
            return {"count": own["request_seconds_count"], "queue": waited, "compute": took - waited}
        answer = self._transport.statistics(model)
        stats = answer["inference_stats"]
        names = {"queue": "queue", "compute": "compute_infer"}
        seconds = {name: int(stats.get(key, {}).get("ns", 0)) / 1e9 for name, key in names.items()}
        return {"count": float(answer.get("inference_count", 0)), **seconds}

    def client(self, protocol: str, place: EmbeddingsPlace | None = None) -> SAM2TritonClient:
        """Return a client. It keeps embeddings on a server with a session model, unless ``place`` is given."""
        return SAM2TritonClient(
            self.urls[protocol],
            self.family,
            model_name=self.name,
            timeout=self.timeout,
            embeddings=place or ("server" if self.has_session else "client"),
            **self.access,
        )

    def unseen_content(self) -> bytes:
        """Return the image file with different bytes at each call.

        The session model identifies images by their bytes, so it must encode each one. Decoders ignore the added bytes,
        which follow the end of the JPEG or PNG data.
        """
        return self.content + self._salt + next(self._content_numbers).to_bytes(8, "big")

    def points(self) -> Iterator[Point]:
        """Yield points (x, y) in pixels endlessly, spread over the whole image."""
        width, height = self.image.size
        for number in itertools.count():  # a low-discrepancy sequence covers the image evenly without repetition
            yield (0.28 + 0.7548776662 * number) % 1 * (width - 1), (0.31 + 0.5698402910 * number) % 1 * (height - 1)

    def boxes(self, count: int) -> list[Box]:
        """Return boxes (x_min, y_min, x_max, y_max) in pixels, spread over the whole image."""
        width, height = self.image.size
        corners = itertools.islice(self.points(), count)
        return [(0.8 * x, 0.8 * y, 0.8 * x + 0.2 * width - 1, 0.8 * y + 0.2 * height - 1) for x, y in corners]

    def close(self) -> None:
        """Close the connection of `check`, `server_version` and `statistics`."""
        self._transport.close()
