"""The exporter of EdgeTAM, with transformers' EdgeTamVideoModel, which is also the reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..._common.extras import missing
from ...errors import ConfigurationError
from ...families.edgetam import EDGETAM
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..reference import Answer, Frames, Prompt, TransformersReference, VideoReference
from ..settings import Settings

try:
    import onnx
    import timm  # noqa: F401 - transformers builds the backbone with it
    import torch
    from transformers import (
        EdgeTamConfig,
        EdgeTamModel,
        EdgeTamVideoConfig,
        EdgeTamVideoInferenceSession,
        EdgeTamVideoModel,
        EdgeTamVisionConfig,
        TimmWrapperConfig,
    )

    from .. import tracing
    from ..point_graphs import trace_decoder
    from ..sam2.video_graphs import trace_video
    from .checkpoints import VIDEO_HALF, adapt_names
    from .graphs import GRAPHS, EdgeTamDecoder, EdgeTamEncoder, sam2_of
except ImportError as error:
    raise missing("exporting and verifying EdgeTAM needs", "export", error, "export,local") from error


class EdgeTamReference(TransformersReference):
    """Reference that runs transformers' EdgeTamModel with its processor."""

    def __init__(self, model: Any) -> None:
        from transformers.models.sam2.image_processing_sam2 import Sam2ImageProcessor
        from transformers.models.sam2.processing_sam2 import Sam2Processor

        super().__init__("edgetam", model, Sam2Processor(Sam2ImageProcessor()))

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        inputs = self._inputs(prompt)
        mask = prompt.get("mask_input")
        if mask is not None:
            inputs["input_masks"] = torch.as_tensor(np.asarray(mask))[None]
        with torch.no_grad():
            if mask is not None and len(inputs) == 1:
                logits, scores = self._of_mask_alone(inputs["input_masks"], multimask)
            else:
                outputs = self._model(image_embeddings=self._embeddings, multimask_output=multimask, **inputs)
                logits, scores = outputs.pred_masks[0], outputs.iou_scores[0]
        return self._answer(logits, scores)

    def _of_mask_alone(self, mask: Any, multimask: bool) -> tuple[Any, Any]:
        """Return logits (1,M,h,w) and scores (1,M) for a mask without points.

        EdgeTamModel.forward would add two padding points. Meta's SAM2ImagePredictor and the other families add none, so
        this calls the parts of EdgeTamModel without a point.
        """
        fine, middle, coarse = self._embeddings
        logits, scores, *_ = self._model.mask_decoder(
            image_embeddings=coarse,
            image_positional_embeddings=self._model.get_image_wide_positional_embeddings(),
            sparse_prompt_embeddings=coarse.new_zeros(1, 1, 0, coarse.shape[1]),
            dense_prompt_embeddings=self._model.prompt_encoder.mask_embed(mask),
            multimask_output=multimask,
            high_resolution_features=[fine, middle],
        )
        return logits[0], scores[0]


VIDEO_STRIDE = 256
"""With --video, the image size must be a multiple of this number, because a memory has 16 x 16 equal parts."""

WEIGHTS_NAME = "model.safetensors"
"""The file with the weights in a folder in transformers' layout."""

SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"repvit_m1": {}, "micro": {"embed_dim": (8, 16, 32, 64), "depth": (1, 1, 1, 1)}}
)
"""The changes to timm's repvit_m1 for each size. "micro" is not official, but a fast size for tests."""

_STRIDE = 16
_WITHOUT_VIDEO = "triton_sam_without_video"
_CHANNELS = {"repvit_m1": [384, 192, 96, 48], "micro": [64, 32, 16, 8]}


class EdgeTamExporter(Exporter):
    """Exports EdgeTAM from Meta's checkpoint or from a folder in transformers' layout.

    The name of the model's configuration is a size: "repvit_m1". If a checkpoint lacks the weights that only videos
    need, the model keeps its initial ones, and has_video() returns False.
    """

    name = "edgetam"
    stride = 32  # of the backbone's coarsest feature map

    def prepare(self, settings: Settings) -> Settings:
        settings = super().prepare(settings)
        if settings.video and settings.side % VIDEO_STRIDE:
            raise ConfigurationError(f"image size {settings.side}: for videos, it must be a multiple of {VIDEO_STRIDE}")
        return settings

    def build(self, model: str, image_size: int) -> torch.nn.Module:
        """Build an EdgeTamVideoModel.

        transformers' default configuration misspells the name of the backbone, so this sets it. The two memory settings
        are from Meta's edgetam.yaml and differ from transformers' defaults.
        """
        if model not in SIZES:
            raise ConfigurationError(f"EdgeTAM has no size {model!r}: its only size is repvit_m1")
        side = image_size // _STRIDE
        config: Any = EdgeTamVideoConfig(
            vision_config=_vision(model, image_size),
            prompt_encoder_config={"image_size": image_size},
            image_size=image_size,
            memory_attention_rope_feat_sizes=[side, side],
            enable_temporal_pos_encoding_for_object_pointers=False,
            enable_occlusion_spatial_embedding=False,
        )
        built: torch.nn.Module = EdgeTamVideoModel(config)
        return built.eval()

    def restore(self, model: Any, checkpoint: str | Path, chosen: str) -> None:
        path = Path(checkpoint)
        super().restore(model, path / WEIGHTS_NAME if path.is_dir() else path, chosen)

    def adapt(self, state: dict[str, Any], model: Any) -> None:
        adapt_names(state, torch.cat, lambda weight: weight.chunk(2))
        if not any(name.startswith(VIDEO_HALF) for name in state):
            state.update({name: value for name, value in model.state_dict().items() if name.startswith(VIDEO_HALF)})
            setattr(model, _WITHOUT_VIDEO, True)

    def randomise(self, model: Any, seed: int) -> None:
        """Change random weights in place so that a comparison detects omissions in a graph.

        The statistics of batch normalisation and the two positional encodings get random values. The weights of a
        convolution are drawn with a standard deviation of sqrt(2 / inputs), so that a signal keeps its size through
        GELU. Each block adds only a small part to its input; otherwise the signal would grow from block to block. The
        weights of a linear layer are drawn with a standard deviation of sqrt(1 / inputs), so that masks depend on
        prompts and on the memory. The memory's layers use half of this, because each frame would otherwise amplify the
        rounding errors of earlier frames. The bias of the object scores is raised, so that objects are visible.
        """
        super().randomise(model, seed)
        generator = torch.Generator().manual_seed(seed)
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.uniform_(-0.1, 0.1, generator=generator)  # type: ignore[union-attr]
                module.running_var.uniform_(0.8, 1.25, generator=generator)  # type: ignore[union-attr]
                if re.search(r"token_mixer|(mixer|ffn)\.conv2", name):
                    module.weight.data.uniform_(0.1, 0.3, generator=generator)
            if isinstance(module, torch.nn.Conv2d):
                weight = module.weight.data
                weight.normal_(generator=generator).mul_((2 / weight[0].numel()) ** 0.5)
            if isinstance(module, torch.nn.Linear):
                gain = 0.5 if name.startswith(("memory_attention.", "spatial_perceiver.")) else 1.0
                module.weight.data.normal_(generator=generator).mul_(gain * module.in_features**-0.5)
        model.mask_decoder.pred_obj_score_head.proj_out.bias.data += 1
        for name, buffer in model.named_buffers():
            if name.endswith("positional_embedding"):
                buffer.normal_(generator=generator)

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:  # noqa: ARG002
        if spec.role not in EDGETAM.models:
            return trace_video(sam2_of(model), spec, graphs=GRAPHS)
        side = model.prompt_encoder.input_image_size
        if spec.role == ENCODER:
            example = torch.rand(2, 3, side, side)
            images = {"image": {0: torch.export.Dim("images", min=1)}}
            return tracing.trace(EdgeTamEncoder(model), EDGETAM.encoder, [example], images)
        shapes = ((256, 16), (32, 4), (64, 8))
        embeddings = [torch.rand(1, channels, side // stride, side // stride) for channels, stride in shapes]
        return trace_decoder(EdgeTamDecoder(sam2_of(model)), EDGETAM.decoder, embeddings, side)

    def check(self, model: Any, settings: Settings) -> None:
        if settings.video and not has_video(model):
            raise ConfigurationError("the checkpoint has no weights for videos: leave --video out")

    def reference(self, model: Any) -> EdgeTamReference:
        return EdgeTamReference(image_model(model))

    def video_reference(self, model: Any, frames: Frames) -> VideoReference:
        from ..sam2.video_reference import TransformersVideoReference

        return TransformersVideoReference(self.family, model, EdgeTamVideoInferenceSession, frames)


def image_model(model: Any) -> torch.nn.Module:
    """Return an EdgeTamModel with the weights of an EdgeTamVideoModel, in eval mode."""
    config: Any = EdgeTamConfig(
        vision_config=model.config.vision_config, prompt_encoder_config={"image_size": model.image_size}
    )
    image: torch.nn.Module = EdgeTamModel(config)
    state = model.state_dict()
    image.load_state_dict({name: state[name] for name in image.state_dict()})
    return image.eval().requires_grad_(False)


def has_video(model: Any) -> bool:
    """Return whether a model from load() has the weights for videos."""
    return not getattr(model, _WITHOUT_VIDEO, False)


def _vision(size: str, image_size: int) -> Any:
    arguments = {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3], **SIZES[size]}
    return EdgeTamVisionConfig(
        backbone_config=TimmWrapperConfig(architecture="repvit_m1", model_args=arguments),
        backbone_channel_list=_CHANNELS[size],
        backbone_feature_sizes=[[image_size // stride] * 2 for stride in (4, 8, _STRIDE)],
    )


EXPORTER = EdgeTamExporter()
