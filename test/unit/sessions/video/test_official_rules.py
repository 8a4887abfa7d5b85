"""Sessions choose memories, pointers, earlier masks and kinds of prompts as the official predictor's own code does.

Both use networks that hash their inputs. Masks are equal only if both choose the same memories, pointers, prompts and
earlier masks.
"""

import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sam2")

import support.fake_tracking as fake
import torch
from sam2.modeling import sam2_base
from sam2.sam2_video_predictor import SAM2VideoPredictor
from support.fake_tracking import Server

from triton_sam.families import get_family
from triton_sam.sessions.video.model import VideoModel, VideoModelSettings
from triton_sam.sessions.video.models import TrackingModels

pytestmark = pytest.mark.export
FRAMES = 40
SIDE = 16
FAMILY = get_family("sam2").at(SIDE)


def digest(*parts):
    """Return a number from 0 to 2**20 - 1 that depends on all parts."""
    return zlib.crc32(repr(parts).encode()) % (1 << 20)


def shown(value):
    """Return the logit of a mask, inside the clamping range -32..32."""
    return float(value % 61 - 30)


def kept(value):
    """Return the value of a memory, exact in bfloat16."""
    return float(value % 256)


def attention(frame, memories, pointers):
    return digest("attend", frame, sorted(memories), sorted(pointers))


def heads(value, points, mask, multimask):
    return digest("decode", value, points, mask, multimask)


def memory(frame, mask, is_prompted):
    return digest("remember", frame, mask, is_prompted)


class Official(SAM2VideoPredictor):
    """The official predictor with the functions above as networks."""

    def __init__(self, num_frames, monkeypatch):
        torch.nn.Module.__init__(self)
        settings = {
            "image_size": SIDE,
            "num_maskmem": 7,
            "hidden_dim": 256,
            "mem_dim": 64,
            "max_cond_frames_in_attn": -1,
            "memory_temporal_stride_for_eval": 1,
            "use_obj_ptrs_in_encoder": True,
            "max_obj_ptrs_in_encoder": 16,
            "only_obj_ptrs_in_the_past_for_eval": True,
            "add_tpos_enc_to_obj_ptrs": True,
            "proj_tpos_enc_in_obj_ptrs": True,
            "use_signed_tpos_enc_to_obj_ptrs": True,
            "directly_add_no_mem_embed": True,
            "use_mask_input_as_output_without_sam": True,
            "multimask_output_in_sam": True,
            "multimask_output_for_tracking": True,
            "multimask_min_pt_num": 0,
            "multimask_max_pt_num": 1,
            "fill_hole_area": 0,
            "non_overlap_masks": False,
            "clear_non_cond_mem_around_input": False,
            "add_all_frames_to_correct_as_cond": False,
            "memory_attention": self._attend,
            "obj_ptr_tpos_proj": lambda position: position[:, :64],
        }
        for name, value in settings.items():
            setattr(self, name, value)
        self.no_mem_embed = torch.nn.Parameter(torch.zeros(1, 1, 256))
        self.maskmem_tpos_enc = torch.nn.Parameter(torch.arange(7.0).reshape(7, 1, 1, 1).expand(7, 1, 1, 64).clone())
        monkeypatch.setattr(sam2_base, "get_1d_sine_pe", lambda position, dim: position[:, None].expand(-1, dim))
        self.eval()
        self.state = {
            "num_frames": num_frames,
            "video_height": SIDE // 4,
            "video_width": SIDE // 4,
            "device": torch.device("cpu"),
            "storage_device": torch.device("cpu"),
            "constants": {},
            "obj_ids": [],
            **{
                name: {}
                for name in (
                    "point_inputs_per_obj",
                    "mask_inputs_per_obj",
                    "obj_id_to_idx",
                    "obj_idx_to_id",
                    "output_dict_per_obj",
                    "temp_output_dict_per_obj",
                    "frames_tracked_per_obj",
                )
            },
        }

    def _get_image_feature(self, inference_state, frame_idx, batch_size):
        feature = torch.full((1, 1, 256), float(frame_idx))
        return None, None, [feature], [torch.zeros(1, 1, 256)], [(1, 1)]

    def _attend(self, curr, curr_pos, memory, memory_pos, num_obj_ptr_tokens):
        count = len(memory) - num_obj_ptr_tokens
        values, positions = memory[:, 0, 0].tolist(), memory_pos[:, 0, 0].tolist()
        memories = [(int(position + 1) % 7, values[i]) for i, position in enumerate(positions[:count])]
        pointers = [(positions[i], values[i]) for i in range(count, len(memory), 4)]
        return torch.full((1, 1, 256), float(attention(int(curr[0][0, 0, 0]), memories, pointers)))

    def _forward_sam_heads(self, backbone_features, point_inputs, mask_inputs, high_res_features, multimask_output):
        points = _points(
            *(([], []) if point_inputs is None else (point_inputs[f"point_{name}"][0] for name in ("coords", "labels")))
        )
        mask = None if mask_inputs is None else float(mask_inputs.mean())
        value = heads(int(backbone_features[0, 0, 0, 0]), points, mask, multimask_output)
        return self._answer(shown(value), value)

    def _use_mask_as_output(self, backbone_features, high_res_features, mask_inputs):
        value = digest("mask", int(backbone_features[0, 0, 0, 0]), float(mask_inputs.sum()))
        return self._answer(shown(int(mask_inputs.sum())), value)

    @staticmethod
    def _answer(logit, value):
        low, high = (torch.full((1, 1, side, side), logit) for side in (SIDE // 4, SIDE))
        return None, None, None, low, high, torch.full((1, 256), float(value)), torch.ones(1, 1)

    def _encode_new_memory(
        self, current_vision_feats, feat_sizes, pred_masks_high_res, object_score_logits, is_mask_from_pts
    ):
        value = memory(int(current_vision_feats[-1][0, 0, 0]), float(pred_masks_high_res.mean()), is_mask_from_pts)
        return torch.full((1, 64, 1, 1), kept(value)), [torch.zeros(1, 64, 1, 1)]


def _points(coords, labels):
    return [(round(float(x), 3), round(float(y), 3), int(k)) for (x, y), k in zip(coords, labels, strict=True)]


class HashingModels(fake.FakeModels):
    """The same networks for triton_sam.sessions.video."""

    def encode(self, given):
        value = float(np.rint(given["image"][0, 0, 0, 0] * 255))
        return {name: np.full(1, value, np.float32) for name in FAMILY.encoder.output_names}

    def attend(self, given):
        values = []
        for row in range(len(given["memories"])):
            memories, vectors = given["memories"][row, :, 0, 0, 0], given["object_pointers"][row, :, 0]
            spatial = zip(given["memory_ages"][row].tolist(), memories.tolist(), strict=True)
            pointers = zip(given["pointer_ages"][row].tolist(), vectors.tolist(), strict=True)
            values.append(attention(_frame(given), list(spatial), list(pointers)))
        return {"conditioned_embeddings": values}

    def decode(self, given):
        values, logits = [], []
        coords, labels, conditioned = given["point_coords"], given["point_labels"], given["image_embeddings"]
        for row in range(len(coords)):
            mask = float(given["mask_input"][row].mean()) if "mask_input" in given else None
            if given["mask_prompt"][row]:
                value = digest("mask", _frame(given), mask)
            else:
                points = [] if labels[row].tolist() == [-1] else _points(coords[row], labels[row])
                frame = conditioned[row] if isinstance(conditioned, list) else _frame(given)
                value = heads(frame, points, mask, bool(given["multimask"][row]))
            values.append(value)
            logits.append(shown(value))
        side = SIDE // 4
        masks = np.broadcast_to(np.array(logits, np.float32).reshape(-1, 1, 1, 1), (len(logits), 1, side, side))
        pointers = np.broadcast_to(np.array(values, np.float32).reshape(-1, 1), (len(values), 256))
        ones = np.ones((len(values), 1), np.float32)
        return {
            "masks": masks,
            "iou_predictions": ones,
            "object_score_logits": ones,
            "object_pointers": pointers,
        }

    def remember(self, given):
        is_prompted = bool(given["is_prompted"][0])
        values = [kept(memory(_frame(given), float(mask.mean()), is_prompted)) for mask in given["masks"]]
        return {"memory": np.array(values, np.float32).reshape(-1, 1, 1, 1) * np.ones((1, 64, 1, 1), np.float32)}

    def prompt_mask(self, given):
        side, total = SIDE // 4, given["mask"].sum()
        return {
            "mask_input": np.full((1, 1, side, side), total, np.float32),
            "masks": np.full((1, 1, side, side), shown(int(total)), np.float32),
        }


def _frame(given):
    return int(given["high_res_feats_0" if "high_res_feats_0" in given else "image_embeddings"][0])


class Both:
    """Runs each operation with the official predictor and with a session, and compares all masks."""

    def __init__(self, monkeypatch, num_frames, prompted=None):
        self.official = Official(num_frames, monkeypatch)
        self.official.max_cond_frames_in_attn = -1 if prompted is None else prompted
        family = replace(FAMILY, tracking=replace(FAMILY.tracking, prompted_memories=prompted))
        self.state = self.official.state
        self.server = Server()
        threads = ThreadPoolExecutor(2)
        models = TrackingModels(family, HashingModels().run, 3)
        self.server.model = VideoModel(family, models, 1 << 20, "weights", VideoModelSettings(), threads)
        self.num_frames = num_frames
        self.ours = self.server.start(num_frames=num_frames)
        self.compared = 0

    def points(self, frame, object_id=1, points=None, labels=None, box=None, clear=True):
        given = {"points": points, "labels": labels, "box": box}
        # The test's video has 4x4 pixels for the official predictor, which spares it a resize.
        scale = SIDE // 4 / np.array(fake.SIZE, np.float32)
        scaled = {
            "points": None if points is None else np.array(points, np.float32) * scale,
            "labels": None if labels is None else np.array(labels, np.int32),
            "box": None if box is None else np.array(box, np.float32) * np.tile(scale, 2),
        }
        expected = self.official.add_new_points_or_box(self.state, frame, object_id, clear_old_points=clear, **scaled)
        self.ours.add_frames(frame)
        self.same(
            self.ours.do("add_prompt", frame_index=frame, object_id=object_id, clear_old_points=clear, **given),
            expected,
        )

    def mask(self, frame, object_id, mask):
        expected = self.official.add_new_mask(self.state, frame, object_id, mask)
        self.ours.add_frames(frame)
        answer = self.ours.do("add_prompt", frame_index=frame, object_id=object_id, tensors={"mask": mask})
        self.same(answer, expected)

    def propagate(self, start=None, count=None, reverse=False):
        expected = list(self.official.propagate_in_video(self.state, start, count, reverse))
        first = True
        for each in expected:
            self.ours.add_frames(each[0])
            answer = self.ours.do("propagate", frame_index=each[0], reverse=reverse, first=first)
            first = False
            self.same(answer, each)

    def clear(self, frame, object_id=1):
        expected = self.official.clear_all_prompts_in_frame(self.state, frame, object_id)
        self.same(self.ours.do("clear_prompts", frame_index=frame, object_id=object_id), expected)

    def remove(self, object_id):
        ids, _ = self.official.remove_object(self.state, object_id)
        answer = self.ours.do("remove_object", object_id=object_id)
        assert answer["result"]["object_ids"] == list(ids)

    def same(self, answer, expected):
        frame, ids, masks = expected
        assert answer["frame_indexes"].tolist() == [frame] * len(ids)
        assert answer["object_ids"].tolist() == list(ids)
        np.testing.assert_array_equal(answer["masks"], masks.numpy(), err_msg=f"frame {frame}")
        self.compared += len(ids)


@pytest.fixture
def both(monkeypatch):
    return Both(monkeypatch, FRAMES)


def mask(*corner):
    array = np.zeros(fake.SIZE[::-1], bool)
    array[: corner[1], : corner[0]] = True
    return array


@pytest.mark.parametrize("num_frames", [2, 5, 16, 17])
def test_short_videos(monkeypatch, num_frames):
    both = Both(monkeypatch, num_frames)
    both.points(1, points=[[3, 4]], labels=[1])
    both.propagate()
    both.propagate(num_frames - 1, reverse=True)
    both.points(0, points=[[5, 4]], labels=[0])
    both.propagate()


def test_three_objects_with_prompts_of_every_kind(both):
    both.points(0, 5, points=[[3, 4], [8, 8]], labels=[1, 0])
    both.points(0, 2, box=[1, 1, 9, 9], points=[[3, 4]], labels=[1])
    both.mask(0, 9, mask(12, 7))
    both.propagate()


def test_prompts_before_the_pass(both):
    both.points(3, points=[[3, 4]], labels=[1])
    both.points(3, points=[[5, 5]], labels=[0], clear=False)
    both.points(3, points=[[7, 7]], labels=[1])
    both.mask(3, 1, mask(5, 5))
    both.points(3, points=[[7, 7]], labels=[1], clear=False)
    both.points(20, points=[[7, 7]], labels=[1])
    both.points(11, points=[[2, 7]], labels=[1])
    both.propagate(count=25)
    both.propagate(30, reverse=True)


@pytest.mark.parametrize("prompted", [2, 4])
def test_only_the_closest_prompted_frames_count(monkeypatch, prompted):
    """The others count as frames without a prompt."""
    both = Both(monkeypatch, FRAMES, prompted)
    for frame in (20, 3, 30, 16, 17, 18):
        both.points(frame, points=[[frame % 12, 4]], labels=[1])
    both.propagate()
    both.propagate(39, reverse=True)
    both.points(17, points=[[9, 9]], labels=[0], clear=False)
    both.propagate(15, 10)


def test_a_correction_in_the_middle(both):
    both.points(0, points=[[3, 4]], labels=[1])
    both.propagate()
    both.points(17, points=[[9, 9]], labels=[0])
    both.points(17, points=[[2, 9]], labels=[1], clear=False)
    both.propagate(18)
    both.propagate(17, 4)
    both.propagate(17, reverse=True)
    both.points(12, points=[[2, 2]], labels=[1])
    both.mask(13, 1, mask(3, 3))
    both.propagate(12)


@pytest.mark.parametrize("point", [[9, 9], [2, 7], [6, 3], [11, 1]])  # one mask in 61 is equal by chance
def test_the_first_prompt_is_corrected(both, point):
    """A correction of a prompted frame attends to the memory and to the pointer, of age 0, of the same frame."""
    both.points(0, points=[[3, 4]], labels=[1])
    both.propagate(count=9)
    both.points(0, points=[point], labels=[0], clear=False)
    both.propagate(count=9)


def test_an_object_comes_midway(both):
    both.points(0, points=[[3, 4]], labels=[1])
    both.propagate(count=15)
    both.points(12, 2, points=[[9, 9]], labels=[1])
    both.points(30, 1, points=[[9, 1]], labels=[1])
    both.propagate(12)
    both.propagate(38, reverse=True)


def test_clear_and_remove(both):
    both.points(0, 1, points=[[3, 4]], labels=[1])
    both.points(4, 1, points=[[3, 5]], labels=[1])
    both.points(4, 2, points=[[8, 4]], labels=[1])
    both.propagate(count=12)
    both.clear(4, 1)
    both.points(4, 1, points=[[6, 6]], labels=[1])
    both.clear(4, 1)
    both.propagate(2, 12)
    both.points(4, 1, points=[[1, 1]], labels=[1])
    both.propagate()
    both.points(9, 2, points=[[1, 1]], labels=[1])
    both.clear(9, 2)
    both.remove(1)
    both.propagate()
