"""The routes of /v1/videos: callers upload a video once, prompt objects in its frames, and track them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import FileResponse, StreamingResponse

from ...tracks.records import MaskRecord
from .. import events
from ..cancellation import FILE_SECONDS, CancellableRequests
from ..engine import Engine
from ..problems import Problem
from ..schemas import BINARY, empty_route, file_route, problem_responses
from ..videos.downloads import FILES, DownloadFile
from ..videos.files import LARGEST_WIDTH, SMALLEST_WIDTH, to_jpeg
from ..videos.schemas import (
    MAX_FRAME,
    Cancelled,
    DownloadFormat,
    FrameMasks,
    PropagateRequest,
    VideoInfo,
    VideoPrompt,
)
from ..videos.store import StoredVideo, Videos
from ..videos.tracking import Done, Progress, Tracked
from .v1 import ModelName

VideoId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id that `POST /v1/videos` answered.")]
Frame = Annotated[int, Query(ge=0, lt=MAX_FRAME, description="The index of a frame, from 0.")]
FrameInPath = Annotated[int, Path(ge=0, lt=MAX_FRAME, description="The index of a frame, from 0.")]
Every = Annotated[
    int, Query(ge=1, le=10_000, description="Track every n-th frame only. Prompts then go to these frames.")
]
ObjectInPath = Annotated[int, Path(ge=1, lt=MAX_FRAME)]

UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "video": {**BINARY, "description": "MP4, MOV, WebM, MKV or AVI."},
                        "frames": {"type": "array", "items": BINARY, "description": "Or the frames as image files."},
                    },
                }
            }
        },
    }
}
EVENTS: dict[str, Any] = {
    "description": "Server-sent events: `frame` (a FrameMasks object) for each frame, `progress` (done, total, "
    "frames_per_second, seconds_left), and at the end `done` (frames, cancelled) or `error` (as problem+json).",
    "content": {events.MEDIA_TYPE: {"schema": {"type": "string"}}},
}


def router(engine: Engine, videos: Videos, requests: CancellableRequests) -> APIRouter:  # noqa: C901 - one route after the other
    api = APIRouter(prefix="/v1/videos", tags=["v1 videos"])
    workers = engine.budgets.workers

    async def written(
        video: StoredVideo, frame: int, records: Sequence[MaskRecord], form: str, tolerance: float
    ) -> FrameMasks:
        width, height = video.file.size
        return await workers.call(2 * width * height, FrameMasks.of, frame, records, form, tolerance)

    @api.post(
        "",
        summary="Upload a video",
        status_code=201,
        openapi_extra=UPLOAD,
        responses=problem_responses(400, 404, 413, 415, 422, 499),
    )
    async def upload(request: Request, response: Response, model: ModelName = None, every: Every = 1) -> VideoInfo:
        """Upload a video file as `video`, or its frames as several `frames`.

        The service stores the video on disk until it is deleted, or unused for a while.
        """
        pair = await videos.pair(model)
        async with videos.room() as room:
            found = await videos.receive(request, room)
            video = await requests.run(request, videos.keep(found, room, pair, every))
        response.headers["Location"] = f"/v1/videos/{video.video_id}"
        return videos.describe(video)

    @api.get("/{video_id}", summary="Look a video up", responses=problem_responses(404, 422))
    async def look(video_id: VideoId) -> VideoInfo:
        """Describe an uploaded video: its objects, and the frames that have masks."""
        return videos.describe(videos.get(video_id))

    @api.delete("/{video_id}", summary="Forget a video", **empty_route(404, 422))
    async def forget(video_id: VideoId) -> None:
        """Delete a video with its session, masks and file. Tracking stops."""
        videos.get(video_id)
        await videos.sessions.remove(video_id)

    @api.get(
        "/{video_id}/frames/{frame}",
        summary="Show a frame",
        **file_route("The frame.", ["image/jpeg"], 404, 422, 499),
    )
    async def show(
        request: Request,
        video_id: VideoId,
        frame: FrameInPath,
        width: Annotated[
            int | None,
            Query(ge=SMALLEST_WIDTH, le=LARGEST_WIDTH, description="Pixels; frames are not enlarged."),
        ] = None,
    ) -> Response:
        """Return a frame as JPEG, for a preview or a thumbnail."""
        video = videos.get(video_id)
        if frame >= video.file.num_frames:
            raise Problem(404, f"there is no frame {frame}: the last one is {video.file.num_frames - 1}")

        def make() -> bytes:
            return to_jpeg(videos.decoders.frame(video.file, frame, "preview"), width)

        pixels = video.file.size[0] * video.file.size[1]
        content = await requests.run(request, workers.call(pixels, make))
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    @api.post(
        "/{video_id}/prompts",
        summary="Prompt an object",
        response_model_exclude_none=True,
        responses=problem_responses(400, 404, 409, 413, 422, 499),
    )
    async def prompt(request: Request, video_id: VideoId, body: VideoPrompt) -> FrameMasks:
        """Prompt an object in one frame, and return its mask there. A new `object_id` creates an object."""
        video = videos.get(video_id)

        async def work() -> FrameMasks:
            record = await video.tracking.add(body)
            return await written(video, body.frame, [record], body.format, body.tolerance)

        return await requests.run(request, work())

    @api.delete("/{video_id}/prompts", summary="Clear the prompts of a frame", **empty_route(404, 409, 422, 499))
    async def clear(
        request: Request, video_id: VideoId, frame: Frame, object_id: Annotated[int, Query(ge=1, lt=MAX_FRAME)]
    ) -> None:
        """Delete an object's prompts and mask in one frame."""
        await requests.run(request, videos.get(video_id).tracking.clear(frame, object_id))

    @api.delete("/{video_id}/objects/{object_id}", summary="Remove an object", **empty_route(404, 409, 422, 499))
    async def remove(request: Request, video_id: VideoId, object_id: ObjectInPath) -> None:
        """Delete an object with its prompts and masks in all frames."""
        await requests.run(request, videos.get(video_id).tracking.remove(object_id))

    @api.post("/{video_id}/reset", summary="Remove all objects", **empty_route(404, 409, 413, 422, 499))
    async def reset(request: Request, video_id: VideoId) -> None:
        """Delete all objects, prompts and masks. The video stays."""
        await requests.run(request, videos.get(video_id).tracking.reset())

    @api.post(
        "/{video_id}/propagate",
        summary="Track",
        response_class=StreamingResponse,
        responses={200: EVENTS, **problem_responses(400, 404, 409, 413, 422)},
    )
    async def propagate(video_id: VideoId, body: PropagateRequest) -> events.EventStream:
        """Track all objects from frame to frame, and send their masks as server-sent events.

        Disconnecting stops tracking after at most one more frame. Finished masks are kept.
        """
        video = videos.get(video_id)
        propagation = await video.tracking.propagate(body)

        async def write(event: Tracked | Progress | Done) -> bytes:
            if isinstance(event, Tracked):
                masks = await written(video, event.frame, event.records, body.format, body.tolerance)
                return events.to_bytes("frame", masks.model_dump_json(exclude_none=True).encode())
            return events.event("done" if isinstance(event, Done) else "progress", **asdict(event))

        return events.EventStream(events.stream(propagation.events, write), propagation.leave)

    @api.post("/{video_id}/cancel", summary="Stop tracking", responses=problem_responses(404, 413, 422))
    async def cancel(request: Request, video_id: VideoId) -> Cancelled:
        """Stop tracking after at most one more frame, and wait for it. Finished masks are kept."""
        return Cancelled(cancelled=await requests.run(request, videos.get(video_id).tracking.cancel()))

    @api.get(
        "/{video_id}/masks",
        summary="Download the masks",
        **file_route("The file.", [media_type for _, media_type in FILES.values()], 404, 409, 422, 499),
    )
    async def masks(
        request: Request,
        video_id: VideoId,
        wanted: Annotated[
            DownloadFormat,
            Query(
                alias="format",
                description="`png`: a ZIP of label maps with the palette of DAVIS; `rle`: JSON Lines with COCO RLE; "
                "`coco`: COCO for videos; `overlay`: an MP4 with the masks drawn in.",
            ),
        ] = "png",
    ) -> FileResponse:
        """Return all masks so far as one file."""
        video = videos.get(video_id)
        with DownloadFile(engine.budgets, video, wanted) as file:
            await requests.run(request, file.write(), timeout=FILE_SECONDS)
            return file.answer()

    return api
