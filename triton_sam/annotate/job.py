"""The description of a run, in plain values, so that it can be sent to another process, and the work on one image.

The work is to segment prompts, or to find all objects or the instances of words.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..client.everything import last_of
from ..client.server_models import FIXED_IMAGE, EncoderIdentity
from ..client.sync import SamTritonClient
from ..concepts.query import check_parameters
from ..errors import ConfigurationError, ModelNotReadyError, SamError
from ..everything.parameters import parameters_of
from ..families import get_family
from ..families.base import Family, Size
from ..families.tables import DECODER, ENCODER, model_name
from ..inputs.header import MANY_PAGES
from ..inputs.images import ImageSource, open_image, pages_of
from ..inputs.names import name_of
from ..inputs.remote import content_at, is_remote, place_of
from .folder import ImageRecord
from .large import Tiling, prompts_of_tiles, read_large_source, tiles_of
from .prompts import Prompt, Prompts
from .reading import read_boxes, read_clicks, read_masks
from .sources import OBJECT, ImageItem, Skipped, Source, read_source

Progress = Callable[[ImageItem, float], None]
"""Receives how much of an image is done, 0..1. Several threads call it."""
AT_ONCE = 16
"""Objects in one request, so that the full-size masks of an image with many objects fit into memory."""


def segment_prompts(prompts: Prompts, progress: Progress, client: SamTritonClient, item: ImageItem) -> ImageRecord:
    """Segment the prompts of an image, with the same masks as client.segment()."""
    image = opened(item)
    kept, skipped = prompts.of(item, image.size)
    skipped = [*image.skipped, *skipped]
    if not kept:
        return ImageRecord.of(item, image.size, [], [], skipped)
    encoded = client.encode(image.content)
    objects: list[dict[str, Any]] = []
    for part in parts(kept):
        segments = client.segment(**together(part, client.family), image=encoded, logits=False)
        categories, origins = [prompt.category for prompt in part], [prompt.what for prompt in part]
        found = ImageRecord.of(item, image.size, segments, categories, origins=origins)
        objects += found.objects
        skipped += found.skipped
        progress(item, len(objects) / len(kept))
    return ImageRecord(item.id, item.name, image.size, tuple(objects), tuple(skipped))


def parts(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    for start in range(0, len(prompts), AT_ONCE):
        yield prompts[start : start + AT_ONCE]


def together(prompts: Sequence[Prompt], family: Family) -> dict[str, Any]:
    """Return the arguments of one client.segment() call for several objects with prompts of one kind."""
    each = [prompt.arguments(family) for prompt in prompts]
    arguments = {name: [values[name] for values in each] for name in each[0]}
    if "mask_input" in arguments:
        arguments["mask_input"] = np.stack(arguments["mask_input"])[:, None]
    return arguments


def find_all(
    parameters: Mapping[str, Any], category: int, progress: Progress, client: SamTritonClient, item: ImageItem
) -> ImageRecord:
    """Find all objects of an image by client.everything(), with one category for all."""
    image = opened(item)
    steps = client.search_steps(image.content, parameters_of(client.family.name, dict(parameters)))
    masks = last_of(steps, lambda step: progress(item, step.done / step.total)).masks
    # A generator, because all full-size masks of a photograph may exceed the memory.
    objects = (each.segment(number) for number, each in enumerate(masks))
    return ImageRecord.of(item, image.size, objects, [category] * len(masks), image.skipped)


def find_instances(
    texts: Sequence[str], parameters: Mapping[str, Any], client: SamTritonClient, item: ImageItem
) -> ImageRecord:
    """Find the instances of texts by client.find(). Texts are categories from 1."""
    image = opened(item)
    found = client.find(list(texts), image=image.content, **parameters)
    return ImageRecord.of(item, image.size, found, [each.object_index + 1 for each in found], image.skipped)


@dataclass(frozen=True)
class Opened:
    """An opened image of a run: a path, bytes, or the pixels of a tile, and the skipped pages of the file."""

    content: ImageSource
    size: Size
    skipped: tuple[Skipped, ...] = ()


def opened(item: ImageItem) -> Opened:
    content = item.content()
    size = open_image(content).size
    item.check_size(size)
    pages = pages_of(content) if isinstance(content, (str, bytes, os.PathLike)) else 1
    if pages == 1:
        return Opened(content, size)
    last = f"{pages} or more" if pages == MANY_PAGES else str(pages)
    left = Skipped(item.name, f"pages 2 to {last}", "only the first page or frame of a file is annotated")
    return Opened(content, size, (left,))


Task = Literal["boxes", "points", "masks", "everything", "words"]
EVERYTHING: Task = "everything"
WORDS: Task = "words"
Work = Callable[[SamTritonClient, ImageItem], ImageRecord]


@dataclass(frozen=True)
class Inputs:
    """The input that a run reads before its first request.

    Args:
        prompts: the prompts; None for a search for all objects or words.
        left_out: one line for each suffix of files in a folder that are not images.
        texts: the words to search for, each of which is a category; empty for other tasks.
    """

    items: tuple[ImageItem, ...]
    skipped: tuple[Skipped, ...]
    prompts: Prompts | None
    left_out: tuple[Skipped, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def categories(self) -> dict[int, str]:
        if self.texts:
            return dict(enumerate(self.texts, 1))
        return OBJECT if self.prompts is None else self.prompts.categories


@dataclass(frozen=True)
class Job:
    """A run.

    Args:
        prompts: the file or folder with the prompts; None: the source.
        name: the variant of the model; None: the default variant.
        urls: the servers; None means the default server.
        parameters: parameters of automatic masks, or of a search for words, that differ from the defaults.
        tiling: how large images are cut into tiles, which become the items of the run; None: images are sent whole.
    """

    source: str
    task: Task
    images: Path | None = None
    prompts: Path | None = None
    class_names: tuple[str, ...] = ()
    family: str = "sam2"
    name: str | None = None
    urls: tuple[str | None, ...] = (None,)
    client: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    every: int = 1
    tiling: Tiling | None = None

    @property
    def is_search(self) -> bool:
        """Whether objects are searched for instead of prompted one by one."""
        return self.task in (EVERYTHING, WORDS)

    def check(self) -> None:
        """Check the options without reading the content of files."""
        if self.tiling is not None:
            self.tiling.check()
            if self.task == "masks":
                raise ConfigurationError("--large is for --with boxes, points, everything and words")
        self._check_files()
        if self.texts and self.task != WORDS:
            raise ConfigurationError("--text is for --with words")
        if self.task == WORDS:
            self._check_words()
        elif self.task == EVERYTHING:
            parameters_of(self.family, dict(self.parameters))
        elif self.parameters:
            raise ConfigurationError(f"--{next(iter(self.parameters)).replace('_', '-')} is for --with everything")
        if self.task == "masks" and not get_family(self.family).takes_mask:
            raise ConfigurationError(f"{self.family} takes no mask as a prompt: use another --model, or --with boxes")

    def _check_files(self) -> None:
        if self.images is not None and place_of(self.source).suffix.lower() not in (".txt", ".json"):
            raise ConfigurationError("--images is for a list (.txt) or a COCO data set (.json)")
        if self.is_search and self.prompts is not None:
            raise ConfigurationError("--prompts is for --with boxes, points and masks")
        if self.class_names and (self.task != "boxes" or self.prompts is None or self.prompts.is_file()):
            raise ConfigurationError(
                "--class-names is for --with boxes --prompts FOLDER: COCO, CSV and JSON files name their own classes"
            )

    def _check_words(self) -> None:
        if not self.texts:
            raise ConfigurationError('--with words needs --text, for example --text "traffic light"')
        if not get_family(self.family).concepts:
            raise ConfigurationError(f"{self.family} cannot find words: use another --model")
        check_parameters(self.texts, None, None, self.parameters)
        if len(set(self.texts)) < len(self.texts):
            raise ConfigurationError("a --text is given twice: each is a category")

    def absolute(self) -> Job:
        """Return the job with absolute paths, for processes with a different working directory."""
        images, prompts = (None if path is None else path.absolute() for path in (self.images, self.prompts))
        return replace(self, source=str(place_of(self.source).absolute()), images=images, prompts=prompts)

    def read(self) -> Inputs:
        """Read the names of the images and the prompts."""
        source = self._source()
        prompts = None
        if self.task == "boxes":
            prompts = read_boxes(self.prompts, source, self.class_names)
        elif self.task == "points":
            prompts = read_clicks(self.prompts, source)
        elif self.task == "masks":
            prompts = read_masks(self.prompts, source)
        items = source.items
        if self.tiling is not None:
            tiles = tuple(tiles_of(source, self.tiling))
            prompts, items = (None, tiles) if prompts is None else prompts_of_tiles(prompts, tiles)
        strays = () if prompts is None else prompts.strays
        return Inputs(items, (*source.skipped, *strays), prompts, source.left_out, self.texts)

    def _source(self) -> Source:
        if self.tiling is None:
            return read_source(self.source, self.images, self.every)
        return read_large_source(self.source, self.images, self.every, self.tiling)

    def work(self, inputs: Inputs, progress: Progress = lambda *_: None) -> Work:
        """Return the function that annotates one image with a client and reports its progress."""
        if inputs.prompts is not None:
            return partial(segment_prompts, inputs.prompts, progress)
        if inputs.texts:
            return partial(find_instances, inputs.texts, self.parameters)
        return partial(find_all, self.parameters, next(iter(OBJECT)), progress)

    @contextlib.contextmanager
    def clients(self) -> Iterator[list[SamTritonClient]]:
        """Yield one client for each server. Clients wait for a busy server."""
        with contextlib.ExitStack() as stack:
            options: dict[str, Any] = {"model_name": self.name, "busy": "wait", **self.client}
            yield [
                stack.enter_context(SamTritonClient(url, self.family, **options)) for url in dict.fromkeys(self.urls)
            ]

    def manifest(self, inputs: Inputs, clients: Sequence[SamTritonClient]) -> dict[str, Any]:
        """Return all parameters that affect the masks, as JSON values."""
        return {
            "family": self.family,
            "with": self.task,
            "parameters": dict(self.parameters),
            "images": _digest(f"{item.id} {item.name} {item.size}" for item in inputs.items),
            "prompts": None if self.is_search else _digest(self._prompt_files()),
            "models": self._models(clients),
            "categories": inputs.categories,
            **({"tiling": self.tiling.described()} if self.tiling else {}),
        }

    def _models(self, clients: Sequence[SamTritonClient]) -> dict[str, str]:
        """Return the versions of the models and, from a session model, a fingerprint of the encoder's weights.

        The fingerprint differs if another model is served under the same version.
        """
        roles = (ENCODER, DECODER, *(get_family(self.family).concepts if self.texts else ()))
        names = [model_name(self.name or self.family, role) for role in roles]
        remedy = f"set it up by `triton-sam setup {self.family}{' --concepts' if self.texts else ''}`"
        found = []
        for client in clients:
            models = client.models()
            for name in names:
                if name not in models:
                    raise ModelNotReadyError(f"{client.url} does not have the model {name} ready: {remedy}")
            known = EncoderIdentity.of(client.encode(FIXED_IMAGE)).weights
            weights = {"weights": known} if known is not None else {}
            found.append({name: str(models[name]) for name in names} | weights)
        if any(each != found[0] for each in found):
            raise ConfigurationError(
                "the servers have different versions of the model, whose results do not mix: load one version on all"
            )
        return found[0]

    def _prompt_files(self) -> Iterator[str]:
        path = self.prompts or place_of(self.source)
        if is_remote(path):
            yield f"{path.name} {hashlib.sha256(content_at(path)).hexdigest()}"
            return
        files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
        for file in files:
            yield f"{name_of(file.name)} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def is_ready(client: SamTritonClient) -> bool:
    """Return whether a server answers and has its models ready."""
    with contextlib.suppress(SamError):
        return client.is_ready()
    return False


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
