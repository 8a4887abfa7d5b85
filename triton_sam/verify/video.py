"""Compare video models with the official video predictor: same weights, same frames, same prompts.

A transport runs the video model in this process, and uses another transport for its models. It compares the client for
videos and the code inside Triton with the official predictor, without a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..client.video.video import Video
from ..export.reference import Logits, VideoReference
from ..families.base import Family, FloatArray, Size
from ..masks.boxes import intersection_over_union
from ..masks.resize import resize_logits
from ..masks.segment import VideoSegment
from ..sessions.concepts import Concepts
from ..sessions.video.model import VideoModel, VideoModelSettings
from ..sessions.video.models import TrackingModels
from ..transport.base import BaseTransport, Tensors
from ..wire import video
from .compare import THRESHOLDS, places


class VideoTransport:
    """A BaseTransport with a video model in this process. It forwards all other requests.

    Args:
        family: the family at the size of its encoder's image.
        transport: the transport to its default models.
        concepts: the settings of searches for words; None without models for them.

    Raises:
        ConfigurationError: the family has no models for videos.
    """

    def __init__(self, family: Family, transport: BaseTransport, concepts: Concepts | None = None) -> None:
        self._transport = transport
        self._names = {role: family.model_name(role) for role in family.every_model}
        self._name = video.video_model(family)
        self._threads = ThreadPoolExecutor(1, "video")
        self._model = VideoModel(
            family,
            TrackingModels(family, self._run, video.DEFAULT_OBJECTS_AT_A_TIME),
            video.DEFAULT_CACHE_BYTES,
            "this process",
            VideoModelSettings(),
            self._threads,
            concepts,
        )

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        return self._transport.one_call()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Answer a request to the video model; see BaseTransport.infer.

        Raises:
            SamError: the request was refused, with the error that a client of a server would raise.
        """
        if model != self._name:
            return self._transport.infer(model, inputs, outputs)
        reply = self._model.answer(inputs, wants_snapshot=video.SNAPSHOT in outputs)
        if reply.error is not None:
            raise reply.error
        return {name: reply.tensors[name] for name in outputs if name in reply.tensors}

    def _run(
        self,
        role: str,
        held: Tensors,
        arrays: Tensors,
        outputs: tuple[str, ...],
        is_kept: bool,  # noqa: ARG002 - kept outputs are arrays here
    ) -> Tensors:
        return self._transport.infer(self._names[role], {**held, **arrays}, outputs)

    def is_ready(self) -> bool:
        return self._transport.is_ready()

    def ready_models(self) -> Mapping[str, str]:
        return {**self._transport.ready_models(), self._name: "1"}

    def model_config(self, model: str) -> Mapping[str, Any]:
        if model != self._name:
            return self._transport.model_config(model)
        return {"input": [{"name": tensor.name} for tensor in video.inputs()]}

    def close(self) -> None:
        self._threads.shutdown()
        self._transport.close()


class ClientRunner:
    """A VideoReference that runs a client's open video."""

    def __init__(self, video: Video) -> None:
        self._video = video

    def add(self, frame: int, object_id: int, **prompt: Any) -> Logits:
        return {object_id: self._logits(self._video.add(frame, object_id, **prompt))}

    def propagate(self, start: int | None = None, *, reverse: bool = False) -> Iterator[tuple[int, Logits]]:
        for frame, segments in self._video.propagate(start, reverse=reverse):
            yield frame, {object_id: self._logits(segment) for object_id, segment in segments.items()}

    def reset(self) -> None:
        self._video.reset()

    def _logits(self, segment: VideoSegment) -> FloatArray:
        assert segment.logits is not None  # noqa: S101 - for the type checker: the client requests logits by default
        return resize_logits(segment.logits.reshape(segment.logits.shape[-2:]), self._video.frame_size)


@dataclass(frozen=True)
class Step:
    """One step of a case: a prompt or a pass.

    Args:
        prompt: arguments of VideoReference.add(); None for a pass.
    """

    prompt: Mapping[str, Any] | None = None
    start: int | None = None
    reverse: bool = False


@dataclass(frozen=True)
class VideoRow:
    """One case, answered by one runner and by the official predictor.

    Args:
        frames: number of answers that were compared: frames of all passes, and prompts.
        logit_diff: largest absolute difference of the logits, both clamped to +-32.
        iou: IoU of the masks in the size of the frames, the smallest of all objects and frames, 0..1.
        pixels: pixels that differ in a mask, the most of all objects and frames; -1 if frames or objects are missing.
        visible: share of the compared masks that have pixels, 0..1. Masks without pixels prove little.
    """

    runner: str
    case: str
    frames: int
    logit_diff: float
    iou: float
    pixels: int
    visible: float

    HEAD: ClassVar[tuple[str, ...]] = (
        "runner",
        "case",
        "answers",
        "max |logit diff|",
        "mask IoU",
        "pixels",
        "with mask",
    )

    def cells(self) -> tuple[str, ...]:
        numbers = f"{self.logit_diff:.1e}", f"{self.iou:.6f}", str(self.pixels), f"{self.visible:.0%}"
        return (self.runner, self.case, str(self.frames), *numbers)

    def passes(self, threshold: float) -> bool:
        """Return whether there are masks, and they meet the threshold.

        NaN never does. One pixel may differ, because rounding decides it.
        """
        if self.visible == 0 or np.isnan(self.logit_diff):
            return False
        return self.iou >= threshold or 0 <= self.pixels <= 1


def threshold(frames: int, precision: str = "fp32") -> float:
    """Return the smallest allowed IoU. Differences grow along a video, because each frame depends on earlier ones.

    Args:
        precision: precision of the export. Below fp32, the threshold for images applies, for any number of frames.
    """
    if precision != "fp32":
        return THRESHOLDS[precision].iou
    return 0.9999 if frames <= 8 else 0.999


def cases(size: Size, frames: int) -> dict[str, list[Step]]:
    """Return the cases by title: prompts and passes, spread over a video of any size.

    Args:
        size: width and height of the frames in pixels.
        frames: number of frames, at least 4.
    """
    middle = frames // 2
    click = Step({"frame": 0, "object_id": 1, "points": places(size, (0.32, 0.36)), "labels": [1]})
    box = Step({"frame": 0, "object_id": 2, "box": places(size, (0.1, 0.5), (0.45, 0.9)).reshape(4)})
    third = Step({"frame": 0, "object_id": 3, "points": places(size, (0.7, 0.3), (0.9, 0.9)), "labels": [1, 0]})
    correction = Step({"frame": middle, "object_id": 1, "points": places(size, (0.5, 0.5)), "labels": [0]})
    late = Step({"frame": middle, "object_id": 2, "points": places(size, (0.66, 0.6)), "labels": [1]})
    mask = Step({"frame": 0, "object_id": 1, "mask": _disc(size)})
    middle_click = Step({"frame": middle, "object_id": 1, "points": places(size, (0.4, 0.4)), "labels": [1]})
    again = Step(start=middle)
    return {
        "one object": [click, Step()],
        "three objects": [click, box, third, Step()],
        "correction in the middle": [click, Step(), correction, again],
        "object added midway": [click, Step(), late, again],
        "both directions": [middle_click, Step(), Step(start=middle, reverse=True)],
        "mask prompt": [mask, Step()],
    }


def verify_video(
    reference: VideoReference, runners: Mapping[str, VideoReference], size: Size, frames: int
) -> Iterator[VideoRow]:
    """Compare runners with the official video predictor.

    Yields:
        One row for each case and runner.
    """
    for title, steps in cases(size, frames).items():
        expected = list(_answers(reference, steps))
        for name, runner in runners.items():
            yield _compare(name, title, list(_answers(runner, steps)), expected)


def _answers(runner: VideoReference, steps: Sequence[Step]) -> Iterator[tuple[int, dict[int, FloatArray]]]:
    runner.reset()
    for step in steps:
        if step.prompt is not None:
            yield int(step.prompt["frame"]), dict(runner.add(**step.prompt))
        else:
            for frame, logits in runner.propagate(step.start, reverse=step.reverse):
                yield frame, dict(logits)


def _compare(
    name: str,
    title: str,
    found: Sequence[tuple[int, Logits]],
    expected: Sequence[tuple[int, Logits]],
) -> VideoRow:
    """Compare the answers of one case. Unexpected frames or objects count as an IoU of 0."""
    if [(frame, set(logits)) for frame, logits in found] != [(frame, set(logits)) for frame, logits in expected]:
        return VideoRow(name, title, len(found), np.inf, 0.0, -1, 0.0)
    differences, ious, pixels, visible = [0.0], [1.0], [0], []
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        for object_id, logits in ours.items():
            pair = logits, theirs[object_id]
            differences.append(float(np.abs(np.subtract(*(np.clip(each, -32, 32) for each in pair))).max()))
            mask, official = (each > 0 for each in pair)
            ious.append(intersection_over_union(mask, official))
            pixels.append(int(np.count_nonzero(mask != official)))
            visible.append(bool(official.any()))
    return VideoRow(
        name, title, len(found), float(np.max(differences)), min(ious), max(pixels), float(np.mean(visible))
    )


def _disc(size: Size) -> npt.NDArray[np.bool_]:
    """Return the mask of a disc in the size of the frames."""
    width, height = size
    y, x = np.mgrid[:height, :width]
    disc: npt.NDArray[np.bool_] = (x - 0.4 * width) ** 2 + (y - 0.45 * height) ** 2 < (0.2 * min(size)) ** 2
    return disc
