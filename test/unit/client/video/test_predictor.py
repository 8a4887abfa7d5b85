"""The words of the official SAM2VideoPredictor."""

import numpy as np
import pytest
from support.video_server import VideoServer, open_video

from triton_sam import SAM2VideoClient
from triton_sam.client.video.predictor import SAM2VideoPredictor
from triton_sam.errors import PromptError

FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(12)]


@pytest.fixture
def predictor(video_server):
    return SAM2VideoPredictor(SAM2VideoClient(video_server.url, retries=0))


def test_the_calls_of_the_official_notebook(predictor, video_server):
    state = predictor.init_state(video_path=FRAMES, offload_video_to_cpu=True)
    assert (state["num_frames"], state["video_height"], state["video_width"]) == (12, 48, 64)
    points, labels = np.array([[10, 20]], np.float32), np.array([1], np.int32)
    frame, ids, masks = predictor.add_new_points_or_box(state, frame_idx=2, obj_id=4, points=points, labels=labels)
    assert (frame, ids, masks.shape, masks.dtype) == (2, [4], (1, 1, 48, 64), np.float32)
    frame, ids, masks = predictor.add_new_mask(state, 3, 9, np.ones((48, 64), bool))
    assert (frame, ids, masks.shape) == (3, [4, 9], (2, 1, 48, 64))
    passed = list(predictor.propagate_in_video(state))
    assert [frame for frame, _, _ in passed] == list(range(2, 12))
    assert all(ids == [4, 9] and masks.shape == (2, 1, 48, 64) for _, ids, masks in passed)
    frame, ids, masks = predictor.clear_all_prompts_in_frame(state, 3, 9)
    assert (frame, ids, masks.shape) == (3, [4, 9], (2, 1, 48, 64))
    assert predictor.clear_all_prompts_in_frame(state, 2, 4, need_output=False) is None
    assert predictor.remove_object(state, 77) == ([4, 9], [])
    ids, updated = predictor.remove_object(state, 4)
    assert ids == state["obj_ids"] == [9]
    assert all(masks.shape == (1, 1, 48, 64) for _, masks in updated)
    predictor.reset_state(state)
    assert state["obj_ids"] == []


def test_the_masks_are_those_of_the_video(predictor):
    state = predictor.init_state(FRAMES)
    predictor.add_new_points(state, 0, 1, [[1, 2]], [1])
    official = [masks[0, 0] > 0 for _, _, masks in predictor.propagate_in_video(state)]
    with VideoServer() as other, open_video(other, FRAMES) as video:
        video.add(0, 1, points=[[1, 2]], labels=[1])
        for mask, (_, segments) in zip(official, video.propagate(), strict=True):
            np.testing.assert_array_equal(mask, segments[1].mask)


def frames_of(passed):
    return [frame for frame, _, _ in passed]


def test_passes_have_the_length_of_the_official_ones(predictor):
    """One frame more than max_frame_num_to_track, and nothing in reverse from frame 0."""
    state = predictor.init_state(FRAMES)
    predictor.add_new_points_or_box(state, 5, 1, box=[[1, 2, 30, 40]])
    assert frames_of(predictor.propagate_in_video(state, max_frame_num_to_track=3)) == [5, 6, 7, 8]
    assert frames_of(predictor.propagate_in_video(state, reverse=True)) == [5, 4, 3, 2, 1, 0]
    assert frames_of(predictor.propagate_in_video(state, 3, 1, reverse=True)) == [3, 2]
    assert frames_of(predictor.propagate_in_video(state, start_frame_idx=0, reverse=True)) == []


def test_relative_coordinates_are_scaled(predictor, video_server):
    state = predictor.init_state(FRAMES)
    predictor.add_new_points_or_box(
        state, 0, 1, points=[[0.5, 0.25]], labels=[1], box=[0, 0, 0.5, 1], normalize_coords=False
    )
    arguments = video_server.arguments(-1)
    assert arguments["points"] == [[32, 12]]
    assert arguments["box"] == [0, 0, 32, 48]


def test_wrong_calls_are_errors_as_in_the_official_predictor(predictor):
    state = predictor.init_state(FRAMES)
    with pytest.raises(ValueError, match="together"):
        predictor.add_new_points_or_box(state, 0, 1, points=[[1, 2]])
    with pytest.raises(ValueError, match="box comes before"):
        predictor.add_new_points_or_box(state, 0, 1, box=[1, 2, 3, 4], clear_old_points=False)
    with pytest.raises(PromptError, match="there is no object 5"):
        predictor.remove_object(state, 5, strict=True)
    with pytest.raises(PromptError, match="nothing to track"):
        next(predictor.propagate_in_video(state))
