"""Networks that hash their inputs, for the official SAM2VideoPredictor and for the project's tracker.

Masks are equal only if both choose the same memories, pointers, prompts and earlier masks.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from sam2.modeling import sam2_base
from sam2.sam2_video_predictor import SAM2VideoPredictor

from triton_sam.families import get_family
from triton_sam.sessions.video.models import Decoded, DecoderPrompt, Memories

SIDE = 16
FAMILY = get_family("sam2").at(SIDE)


def digest(*parts: Any) -> int:
    """Return a number from 0 to 2**20 - 1 that depends on all parts."""
    return zlib.crc32(repr(parts).encode()) % (1 << 20)


def shown(value: int) -> float:
    """Return the logit of a mask, inside the clamping range -32..32."""
    return float(value % 61 - 30)


def kept(value: int) -> float:
    """Return the value of a memory, exact in bfloat16."""
    return float(value % 256)


def attention(frame: int, memories: list, pointers: list) -> int:
    return digest("attend", frame, sorted(memories), sorted(pointers))


def heads(value: int, points: list, mask: float | None, multimask: bool) -> int:
    return digest("decode", value, points, mask, multimask)


def memory(frame: int, mask: float, is_prompted: bool) -> int:
    return digest("remember", frame, mask, is_prompted)


class Official(SAM2VideoPredictor):  # type: ignore[misc]
    """The official predictor with the functions above as networks."""

    def __init__(self, num_frames: int, monkeypatch: Any) -> None:
        torch.nn.Module.__init__(self)
        settings: dict[str, Any] = {
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
        self.state: dict[str, Any] = {
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
    def _answer(logit: float, value: int):
        low, high = (torch.full((1, 1, side, side), logit) for side in (SIDE // 4, SIDE))
        return None, None, None, low, high, torch.full((1, 256), float(value)), torch.ones(1, 1)

    def _encode_new_memory(
        self, current_vision_feats, feat_sizes, pred_masks_high_res, object_score_logits, is_mask_from_pts
    ):
        value = memory(int(current_vision_feats[-1][0, 0, 0]), float(pred_masks_high_res.mean()), is_mask_from_pts)
        return torch.full((1, 64, 1, 1), kept(value)), [torch.zeros(1, 64, 1, 1)]


def _points(coords: Any, labels: Any) -> list:
    return [(round(float(x), 3), round(float(y), 3), int(k)) for (x, y), k in zip(coords, labels, strict=True)]


class HashingModels:
    """The same networks for triton_sam.sessions.video."""

    objects_at_a_time = 3

    def encode(self, inputs):
        value = float(np.rint(inputs["image"][0, 0, 0, 0] * 255))
        return {name: np.full(1, value, np.float32) for name in FAMILY.encoder.output_names}

    def attend(self, frame, memories: Memories):
        values = []
        for row in range(len(memories.ages)):
            spatial = zip(memories.ages[row].tolist(), memories.memories[row, :, 0, 0, 0].tolist(), strict=True)
            pointers = zip(memories.pointer_ages[row].tolist(), memories.pointers[row, :, 0].tolist(), strict=True)
            values.append(attention(_frame(frame), list(spatial), list(pointers)))
        return values

    def decode(self, frame, conditioned, prompt: DecoderPrompt):
        values, logits = [], []
        for row in range(len(prompt.coords)):
            mask = None if prompt.mask is None else float(prompt.mask[row].mean())
            if prompt.mask_prompt:
                value = digest("mask", _frame(frame), mask)
            else:
                points = [] if prompt.labels[row].tolist() == [-1] else _points(prompt.coords[row], prompt.labels[row])
                value = heads(
                    _frame(frame) if conditioned is None else conditioned[row], points, mask, prompt.multimask
                )
            values.append(value)
            logits.append(shown(value))
        side = SIDE // 4
        masks = np.broadcast_to(np.array(logits, np.float32).reshape(-1, 1, 1, 1), (len(logits), 1, side, side))
        pointers = np.broadcast_to(np.array(values, np.float32).reshape(-1, 1), (len(values), 256))
        ones = np.ones((len(values), 1), np.float32)
        return Decoded(masks, ones, ones, pointers)

    def remember(self, frame, masks, scores, is_prompted):
        values = [kept(memory(_frame(frame), float(mask.mean()), is_prompted)) for mask in masks]
        return np.array(values, np.float32).reshape(-1, 1, 1, 1) * np.ones((1, 64, 1, 1), np.float32)

    def prompt_mask(self, mask):
        side = SIDE // 4
        total = np.full((1, 1, side, side), mask.sum(), np.float32)
        return total, np.full((1, 1, side, side), shown(int(mask.sum())), np.float32)


def _frame(frame) -> int:
    return int(next(iter(frame.values()))[0])
