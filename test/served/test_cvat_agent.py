"""CVAT's own agent (`cvat-cli function run-agent`) with the tracker: its shapes are those of the video client."""

from __future__ import annotations

import numpy as np
import pytest
from support import clip
from support.cvat_program import install_program, runner
from support.fake_cvat import FUNCTION, TASK, running_cvat

from triton_sam import SAM2VideoClient
from triton_sam.masks import mask_to_box
from triton_sam.service.adapters.nuclio_masks import box_runs, mask_of_points

pytestmark = [pytest.mark.slow, pytest.mark.export, pytest.mark.timeout(600)]

FRAMES = 4
X, Y = clip.START
BOX = [X - 30, Y - 30, X + 30, Y + 30]


def test_an_agent_tracks_a_rectangle_and_a_mask(video_server, tmp_path):
    frames = []
    for number in range(FRAMES):
        frames.append(tmp_path / f"{number}.png")
        frames[-1].write_bytes(clip.png(number))
    with SAM2VideoClient(video_server.grpc_url) as client, client.open(frames) as video:
        video.add(0, 1, box=BOX)
        video.add(0, 2, mask=clip.disc(0))
        expected = [masks for _, masks in video.propagate(start=0)]
    run = runner(install_program(tmp_path), tmp_path)
    parameters = {"kind": "tracker", "url": video_server.grpc_url}
    drawn = [{"type": "rectangle", "points": BOX}, {"type": "mask", "points": box_runs(clip.disc(0))}]
    with running_cvat(frames, "object") as cvat:
        run(cvat.url, "function", "create-native", "SAM2 tracker", **parameters)
        cvat.asked += [
            {"type": "init_tracking", "task": TASK, "frame": 0, "shapes": drawn},
            *({"type": "track", "task": TASK, "frame": frame, "states": "last"} for frame in range(1, FRAMES)),
        ]
        run(cvat.url, "function", "run-agent", str(FUNCTION), "--burst", **parameters)
    assert (cvat.unknown, cvat.asked) == ([], [])
    assert any(found.mask.any() for masks in expected[1:] for found in masks.values())
    for result, masks in zip(cvat.results[1:], expected[1:], strict=True):
        rectangle, mask = result["shapes"]
        box = mask_to_box(masks[1].mask)
        assert (rectangle and rectangle["points"]) == (box and list(box))
        shown = (
            np.zeros_like(masks[2].mask) if mask is None else mask_of_points(mask["points"], (clip.WIDTH, clip.HEIGHT))
        )
        assert np.array_equal(shown, masks[2].mask)
