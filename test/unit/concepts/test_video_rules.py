"""The rules for words in videos decide as transformers' Sam3VideoModel does, frame by frame."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from triton_sam.concepts.video_rules import (
    Detections,
    Plan,
    Tracks,
    VideoObjects,
    VideoRules,
    nms_masks,
    without_overlaps,
)

SIDE = 20
RARE = VideoRules(
    hotstart_delay=6,
    hotstart_unmatch_thresh=3,
    hotstart_dup_thresh=2,
    suppress_unmatched_only_within_hotstart=False,
    init_trk_keep_alive=2,
    max_trk_keep_alive=3,
    decrease_trk_keep_alive_for_empty_masklets=True,
    recondition_every_nth_frame=2,
    max_num_objects=5,
)
NONE = VideoRules(
    hotstart_delay=0,
    recondition_every_nth_frame=0,
    suppress_overlapping_based_on_recent_occlusion_threshold=0,
)


class World:
    """Things that move, a detector that finds some of them, and a tracker whose masks wander, vanish and overlap."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.things = [self.rng.integers(0, SIDE - 6, 2) for _ in range(4)]
        self.followed: dict[int, np.ndarray] = {}

    def detections(self) -> Detections:
        chosen = [place for place in self.things if self.rng.random() < 0.7]
        masks = [self._mask(place + self.rng.integers(-1, 2, 2)) for place in chosen]
        scores = self.rng.uniform(0.5, 1, len(chosen)).astype(np.float32)
        texts = np.sort(self.rng.integers(0, 2, len(chosen)))
        return Detections(np.array(masks, np.float32).reshape(-1, SIDE, SIDE), scores, texts)

    def tracks(self) -> Tracks:
        masks = []
        for obj_id, place in self.followed.items():
            jumps = self.rng.random() < 0.1
            self.followed[obj_id] = self.things[self.rng.integers(4)].copy() if jumps else place
            masks.append(self._mask(self.followed[obj_id]) if self.rng.random() < 0.9 else self._nothing())
        scores = self.rng.normal(2, 3, len(masks)).astype(np.float32)
        return Tracks(list(self.followed), np.array(masks, np.float32).reshape(-1, SIDE, SIDE), scores)

    def follow(self, plan: Plan, detections: Detections) -> None:
        for obj_id, index in plan.new.items():
            rows, columns = np.nonzero(detections.masks[index] > 0)
            self.followed[obj_id] = np.array([rows.min(), columns.min()])
        for obj_id in plan.removed:
            self.followed.pop(obj_id, None)

    def _mask(self, place: np.ndarray) -> np.ndarray:
        row, column = np.clip(place, 0, SIDE - 6)
        logits = self._nothing()
        logits[row : row + 6, column : column + 6] = self.rng.uniform(0.1, 5, (6, 6))
        return logits

    def _nothing(self) -> np.ndarray:
        return self.rng.uniform(-5, -0.1, (SIDE, SIDE)).astype(np.float32)


class Reference:
    """Sam3VideoModel with its own code for each frame, without its detector, its tracker and its memory encoder."""

    def __init__(self, rules: VideoRules) -> None:
        import torch
        from transformers.models.sam3_video import modeling_sam3_video as official

        model = official.Sam3VideoModel.__new__(official.Sam3VideoModel)
        torch.nn.Module.__init__(model)
        for name, value in vars(rules).items():
            setattr(model, name, value)
        model.recondition_on_trk_masks, model.fill_hole_area, model.low_res_mask_size = True, 0, SIDE
        model.get_vision_features_for_tracker = lambda vision_embeds: ([], [])
        model.run_detection = lambda *_, **__: self.found
        model.run_tracker_propagation = lambda **_: self.tracked
        model.run_memory_encoder = self._remember
        object.__setattr__(model, "tracker_model", lambda **_: None)
        object.__setattr__(model, "detector_model", SimpleNamespace(get_vision_features=lambda **_: None))
        self.model: Any = model
        self.session = official.Sam3VideoInferenceSession(torch.zeros(1, 1, 1, 1), dtype=torch.float32)
        self.session.get_frame = lambda _: torch.zeros(1)
        self.session.max_obj_id = 0
        self.scores: Any = None
        self.torch = torch

    def step(self, frame: int, detections: Detections, tracks: Tracks) -> Any:
        tensor = self.torch.from_numpy
        self.found = {}
        for text in (0, 1):
            rows = detections.texts == text
            self.found[text] = {
                "bbox": self.torch.zeros(int(rows.sum()), 4),
                "mask": tensor(detections.masks[rows].copy()),
                "scores": tensor(detections.scores[rows].copy()),
            }
        assert self.session.obj_ids == list(tracks.obj_ids)
        self.tracked = tensor(tracks.masks.copy()), tensor(tracks.scores.copy())
        self.absent: set[int] = set()
        self.conditioned: set[int] = set()
        for obj_id in tracks.obj_ids:
            outputs = self.session.output_dict_per_obj[self.session.obj_id_to_idx(obj_id)]
            outputs["non_cond_frame_outputs"][frame] = {}
        return self.model(self.session, frame_idx=frame)

    def _remember(self, session: Any, frame: int, masks: Any, scores: Any) -> Any:
        ids = session.obj_ids
        self.absent = {obj_id for obj_id, score in zip(ids, scores.ravel().tolist(), strict=True) if score < 0}
        outputs = [session.output_dict_per_obj[session.obj_id_to_idx(obj_id)] for obj_id in ids]
        conditioned = [frame in each["cond_frame_outputs"] for each in outputs]
        self.conditioned = {obj_id for obj_id, is_one in zip(ids, conditioned, strict=True) if is_one}
        memories = self.torch.zeros(1, len(ids), 1)
        return memories, memories


@pytest.mark.export
@pytest.mark.parametrize("rules", [VideoRules(), RARE, NONE], ids=["defaults", "rare", "none"])
def test_decisions_equal_those_of_the_reference(rules):
    pytest.importorskip("transformers")
    seen = {"new": 0, "removed": 0, "hidden": 0, "absent": 0, "reconditioned": 0, "suppressed": 0}
    for seed in range(4):
        world, ours, official = World(seed), VideoObjects(rules), Reference(rules)
        for frame in range(40):
            detections, tracks = world.detections(), world.tracks()
            before = tracks.masks.copy()
            expected = official.step(frame, detections, tracks)
            plan = ours.plan(frame, detections, tracks)
            known = [*tracks.obj_ids, *plan.new]
            assert expected.object_ids == [each for each in known if each not in plan.removed]
            assert expected.removed_obj_ids == ours.removed_obj_ids
            assert expected.suppressed_obj_ids == plan.hidden
            assert (official.absent, official.conditioned) == (plan.absent, plan.reconditioned)
            assert {obj_id: ours.texts[obj_id] for obj_id in expected.object_ids} == (
                official.session.obj_id_to_prompt_id
            )
            # Where an object is removed, the reference pairs the masks with the ids of the others.
            masks = {} if plan.removed else expected.obj_id_to_mask
            assert plan.removed or list(masks) == list(plan.masks)
            for obj_id, mask in masks.items():
                np.testing.assert_array_equal(plan.masks[obj_id], mask[0].numpy())
            np.testing.assert_array_equal(tracks.masks, before)
            world.follow(plan, detections)
            shown = [plan.masks[obj_id] for obj_id in tracks.obj_ids]
            seen["suppressed"] += sum((mask == -10).all() for mask in shown)
            for name in ("new", "removed", "hidden", "absent", "reconditioned"):
                seen[name] += len(getattr(plan, name))
    used = {name for name, count in seen.items() if count}
    assert used >= {"new", "absent", *(() if rules is NONE else ("removed", "suppressed"))}
    assert rules is not RARE or used == set(seen)


@pytest.mark.export
def test_suppression_of_doubles_and_of_overlaps_equals_the_reference(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.sam3_video import modeling_sam3_video as official
    from transformers.models.sam3_video.processing_sam3_video import Sam3VideoProcessor

    def generic_nms(ious: Any, scores: Any, threshold: float, use_iou_matrix: bool) -> Any:
        """Do what the reference's kernel does: keep the best mask, and drop those that overlap it."""
        kept: list[int] = []
        for index in scores.argsort(descending=True).tolist():
            if use_iou_matrix and all(ious[index, other] <= threshold for other in kept):
                kept.append(index)
        return torch.tensor(kept)

    monkeypatch.setattr(official, "cv_utils_kernel", SimpleNamespace(generic_nms=generic_nms))
    processor = Sam3VideoProcessor.__new__(Sam3VideoProcessor)
    dropped = 0
    for seed in range(30):
        world = World(seed)
        parts = [world.detections() for _ in range(3)]
        found = Detections(
            *(np.concatenate([getattr(each, name) for each in parts]) for name in ("masks", "scores", "texts"))
        )
        if not len(found.scores):
            continue
        kept = nms_masks(found, 0.1)
        for text in (0, 1):
            rows = found.texts == text
            scores, masks = torch.from_numpy(found.scores[rows]), torch.from_numpy(found.masks[rows])
            keep = official.nms_masks(scores, masks, 0.0, 0.1).numpy()
            np.testing.assert_array_equal(kept.masks[kept.texts == text], found.masks[rows][keep])
            dropped += int((~keep).sum())
        ours = without_overlaps(found.masks > 0, found.scores, found.texts.tolist())
        expected = processor._apply_object_wise_non_overlapping_constraints(
            torch.from_numpy(found.masks > 0)[:, None],
            torch.from_numpy(found.scores)[:, None],
            background_value=0,
            prompt_ids=found.texts.tolist(),
        )
        np.testing.assert_array_equal(ours, expected[:, 0].numpy() > 0)
    assert dropped


def test_defaults_are_those_of_the_reference():
    configuration = pytest.importorskip("transformers").Sam3VideoConfig()
    assert all(getattr(configuration, name) == value for name, value in vars(VideoRules()).items())
