"""The comparisons of `triton-sam verify` with official predictors."""

from __future__ import annotations

import argparse
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .._common.bundle import bundled
from ..client.sync import SamTritonClient
from ..client.video.sync import SAM2VideoClient
from ..errors import ConfigurationError
from ..export import registry
from ..export.settings import Settings
from ..families import get_family
from ..inputs.images import open_image
from ..scenes.clip import generate_clip
from ..transport.onnx import OnnxTransport
from ..verify import compare, concepts, everything, video, video_words
from ..verify.concepts import ConceptTransport, concepts_of
from ..verify.report import Comparable
from ..verify.video import VideoTransport
from ..wire.video import video_model
from . import _families

Client = contextlib.AbstractContextManager[Any]
"""One or two clients for the models of a runner, until the block ends."""
_CLIP_SEED = 10_000_001


class Comparison(ABC):
    """A comparison of clients with the official predictor of the same weights."""

    patience: ClassVar[float] = 3600.0
    """Time limit of a request in seconds. A full-size model takes minutes on a busy CPU."""
    one_at_a_time: ClassVar[bool] = False
    """Whether to close each client before the next one opens: the weights of several do not fit into memory."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.family = get_family(args.family)
        self.weights = _families.weights(args)

    @property
    def served_model(self) -> str:
        """The variant, or the video model, that a local server loads."""
        return self.args.name or self.family.name

    @property
    def export_settings(self) -> dict[str, Any]:
        """Settings of the export other than the weights and the precision."""
        return {}

    @property
    @abstractmethod
    def subject(self) -> str:
        """The compared image or clip, for messages."""

    @property
    @abstractmethod
    def limits(self) -> Any:
        """The thresholds."""

    @property
    def limits_in_words(self) -> str:
        return str(self.limits)

    @abstractmethod
    def in_process(self, files: Mapping[str, Path]) -> Client:
        """Return a client that runs the ONNX files, given by role, in this process."""

    def client(self, url: str, **options: Any) -> Client:
        return SamTritonClient(url, self.family.name, timeout=self.patience, **options)

    @abstractmethod
    def official(self) -> Any:
        """Return the official predictor or its results, for rows()."""

    @abstractmethod
    def rows(self, official: Any, clients: Mapping[str, Any]) -> Iterable[Comparable]:
        """Compare clients, given by the name of their runner, with the official predictor."""


class _OfAnImage(Comparison):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.path = args.image or bundled("test/images") / "coffee.jpg"
        self.image = open_image(self.path)

    @property
    def subject(self) -> str:
        return str(self.path)

    def in_process(self, files: Mapping[str, Path]) -> Client:
        return compare.OnnxClient(files, self.family.name)


class Images(_OfAnImage):
    """Masks of clicks and boxes."""

    patience = 600.0

    @property
    def limits(self) -> compare.Thresholds:
        return compare.THRESHOLDS[self.args.precision]

    def official(self) -> Any:
        exporter, model = registry.official(self.family.name, **self.weights)
        return exporter.reference(model)

    def rows(self, official: Any, clients: Mapping[str, Any]) -> Iterable[Comparable]:
        return compare.verify(official, self.image, clients)


class Everything(_OfAnImage):
    """Automatic masks."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.points_per_side < 1:
            raise ConfigurationError(f"--points-per-side must be at least 1, not {args.points_per_side}")
        super().__init__(args)

    @property
    def subject(self) -> str:
        return f"{self.args.points_per_side} x {self.args.points_per_side} points on {self.path}"

    @property
    def limits(self) -> everything.Limits:
        return everything.LIMITS

    def official(self) -> Any:
        exporter, model = registry.official(self.family.name, **self.weights)
        return exporter.everything_reference(model)

    def rows(self, official: Any, clients: Mapping[str, Any]) -> Iterable[Comparable]:
        runners = {name: everything.by_client(client) for name, client in clients.items()}
        return everything.verify_everything(official, runners, np.asarray(self.image), self.args.points_per_side)


class Words(_OfAnImage):
    """Instances of words and example boxes. The full-size weights take 3.4 GB, so only one client is open at a time."""

    one_at_a_time = True

    @property
    def served_model(self) -> str:
        return self.family.name

    @property
    def export_settings(self) -> dict[str, Any]:
        return {"concepts": True, "options": _families.exporter_options(self.args, "verify")}

    @property
    def limits(self) -> concepts.Limits:
        return concepts.LIMITS[self.args.precision]

    def in_process(self, files: Mapping[str, Path]) -> Client:
        return SamTritonClient("localhost", self.family.name, transport=ConceptTransport(self.family, files))

    def official(self) -> Any:
        """Return the results, so that the detector's memory is freed."""
        exporter, model = registry.official(self.family.name, **self.weights)
        detector = exporter.concept_reference(model, Settings(Path(), **self.weights, **self.export_settings))
        return concepts.answered_cases(detector, self.image)

    def rows(self, official: Any, clients: Mapping[str, Any]) -> Iterable[Comparable]:
        for name, client in clients.items():
            yield from concepts.verify_concepts(official, name, client, self.image)


class Videos(Comparison):
    """Masks of tracked objects in a drawn clip."""

    patience = 600.0

    def __init__(self, args: argparse.Namespace) -> None:
        if args.frames < 4:
            raise ConfigurationError(f"--frames {args.frames}: the cases need at least 4 frames")
        super().__init__(args)
        self.side = args.image_size or self.family.image_size
        self.clip = list(generate_clip(_CLIP_SEED, args.frames).images)
        height, width = self.clip[0].shape[:2]
        self.size = width, height

    @property
    def served_model(self) -> str:
        return video_model(self.family)

    @property
    def export_settings(self) -> dict[str, Any]:
        return {"video": True, "image_size": self.side}

    @property
    def subject(self) -> str:
        return f"{self.args.frames} frames of {self.size[0]}x{self.size[1]} pixels"

    @property
    def limits(self) -> float:
        return video.threshold(self.args.frames, self.args.precision)

    @property
    def limits_in_words(self) -> str:
        return f"IoU >= {self.limits:g} or one pixel"

    def in_process(self, files: Mapping[str, Path]) -> Client:
        family = self.family.at(self.side)
        models = OnnxTransport({family.model_name(role): file for role, file in files.items()})
        return SAM2VideoClient(model_type=family.name, transport=VideoTransport(family, models))

    def client(self, url: str, **options: Any) -> Client:
        return SAM2VideoClient(url, model_type=self.family.name, timeout=self.patience, **options)

    def official(self) -> Any:
        exporter, model = registry.official(self.family.name, **self.weights, image_size=self.side)
        exporter.add_video(model, Settings(Path(), **self.weights, **self.export_settings))
        return exporter.video_reference(model, self.clip)

    def rows(self, official: Any, clients: Mapping[str, Any]) -> Iterable[Comparable]:
        with contextlib.ExitStack() as stack:
            opened = {name: stack.enter_context(client.open(self.clip)) for name, client in clients.items()}
            runners = {name: video.ClientRunner(each) for name, each in opened.items()}
            yield from video.verify_video(official, runners, self.size, self.args.frames)


class WordsInVideos(Comparison):
    """Objects that words find in a drawn clip, which has the size of the encoder's image.

    In other sizes, the prompt of a new object would differ: it is resized to the size of the frames and then to that
    of the image, by the official model in one step.
    """

    one_at_a_time = True

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.clip = list(generate_clip(_CLIP_SEED, args.frames, self.family.image_size).images)

    @property
    def export_settings(self) -> dict[str, Any]:
        return {"video": True, "concepts": True}

    @property
    def subject(self) -> str:
        side = self.family.image_size
        return f"{' and '.join(video_words.TEXTS)} in {self.args.frames} frames of {side}x{side} pixels"

    @property
    def limits(self) -> video_words.Limits:
        return video_words.limits(self.args.frames)

    @contextlib.contextmanager
    def in_process(self, files: Mapping[str, Path]) -> Iterator[video_words.Clients]:
        models = OnnxTransport({self.family.model_name(role): file for role, file in files.items()})
        found = concepts_of(self.family, files, lambda role: models.model_config(self.family.model_name(role)))
        transport = VideoTransport(self.family, models, found)
        with SAM2VideoClient(model_type=self.family.name, transport=transport) as tracker:
            yield SamTritonClient("localhost", self.family.name, transport=transport), tracker

    @contextlib.contextmanager
    def client(self, url: str, **options: Any) -> Iterator[video_words.Clients]:
        with (
            SamTritonClient(url, self.family.name, timeout=self.patience, **options) as finder,
            SAM2VideoClient(url, model_type=self.family.name, timeout=self.patience, **options) as tracker,
        ):
            yield finder, tracker

    def official(self) -> video_words.Answer:
        """Return the objects, so that the official model's memory is freed."""
        exporter, model = registry.official(self.family.name, **self.weights)
        settings = Settings(Path(), **self.weights, **self.export_settings)
        exporter.add_video(model, settings)
        exporter.add_concepts(model, settings)
        return video_words.official_answer(exporter.video_words_reference(model, self.clip, settings))

    def rows(self, official: Any, clients: Mapping[str, Any]) -> Iterable[Comparable]:
        for name, pair in clients.items():
            yield video_words.verify_video_words(official, name, pair, self.clip)


COMPARISONS: dict[str, type[Comparison]] = {
    "image": Images,
    "video": Videos,
    "everything": Everything,
    "words": Words,
    "video-words": WordsInVideos,
}
