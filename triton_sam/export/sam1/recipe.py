"""The exporter of SAM1, with the model and the official predictor of the `segment_anything` package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from ..._common.extras import missing
from ...errors import ConfigurationError
from ...families.base import Family, FloatArray
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..reference import Answer, GenerateMasks, Prompt, official_records

try:
    import onnx
    import segment_anything.modeling
    import torch
    from torch.nn import functional

    from .. import tracing
    from ..point_graphs import trace_decoder
    from .graphs import Sam1Decoder, Sam1Encoder
except ImportError as error:
    raise missing("exporting and verifying SAM1 needs", "export", error, "export,local") from error


class Sam1Reference:
    """Runs a SamPredictor: of segment_anything, or of another package with its interface."""

    def __init__(self, family: Family, predictor: Any) -> None:
        self.family = family
        self._predictor = predictor

    def set_image(self, image: Image.Image) -> None:
        self._predictor.set_image(np.asarray(image))

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """Answer a prompt; several boxes go to predict_torch, because SamPredictor.predict takes only one box."""
        arrays = {name: np.asarray(value) for name, value in prompt.items()}
        if "box" in arrays and arrays["box"].ndim == 2:
            return self._answer_boxes(arrays["box"], multimask)
        masks, scores, logits = self._predictor.predict(**arrays, multimask_output=multimask)
        return Answer(logits, scores, masks)

    def _answer_boxes(self, boxes: FloatArray, multimask: bool) -> Answer:
        predictor = self._predictor
        frame = predictor.transform.apply_boxes_torch(torch.from_numpy(boxes), predictor.original_size)
        masks, scores, logits = predictor.predict_torch(None, None, frame, multimask_output=multimask)
        return Answer(logits.flatten(0, 1).numpy(), scores.flatten().numpy(), masks.flatten(0, 1).numpy())


CHANNELS = 256
"""Channels of the image embeddings."""
PATCH = 16
"""Side of the patch for one token of the image encoder, in pixels."""

Dimensions = TypeVar("Dimensions")


@dataclass(frozen=True)
class Vit:
    """The dimensions of an image encoder, as in segment_anything.build_sam.

    Args:
        global_blocks: indices of the blocks that attend to the whole image. The others attend to windows of 14x14.
    """

    width: int
    depth: int
    heads: int
    global_blocks: tuple[int, ...]


SIZES: Mapping[str, Vit] = {
    "vit_b": Vit(768, 12, 12, (2, 5, 8, 11)),
    "vit_l": Vit(1024, 24, 16, (5, 11, 17, 23)),
    "vit_h": Vit(1280, 32, 16, (7, 15, 23, 31)),
    "micro": Vit(64, 2, 2, (1,)),
}
"""The image encoder of each size. "micro" is not official, but a fast size for tests with random weights."""


class Sam1Exporter(Exporter):
    """Exports SAM1 from an official state dict.

    The name of the model's configuration is a size, for example "vit_b".
    """

    name = "sam1"
    package: ClassVar[Any] = segment_anything
    """The official package."""
    stride = PATCH
    encoder_graph: ClassVar[type[torch.nn.Module]] = Sam1Encoder
    """The module that is traced as the encoder; it takes the official model."""
    decoder_graph: ClassVar[type[torch.nn.Module]] = Sam1Decoder
    """The module that is traced as the decoder; it takes the official model."""

    def build(self, model: str, image_size: int) -> torch.nn.Module:
        """Build a segment_anything.modeling.Sam as segment_anything.build_sam does, which supports one image size."""
        modeling = self.package.modeling
        encoder = build_vit(modeling, self.dimensions(SIZES, model), image_size)
        return assemble(modeling, encoder, modeling.MaskDecoder, image_size)

    def dimensions(self, sizes: Mapping[str, Dimensions], model: str) -> Dimensions:
        if model not in sizes:
            official = ", ".join(size.name for size in self.family.sizes if size.official)
            raise ConfigurationError(f"{self.family.label} has no size {model!r}: choose one of {official}")
        return sizes[model]

    def adapt(self, state: dict[str, Any], model: Any) -> None:
        """Interpolate the checkpoint's position embeddings, which are for 1024 pixels, to the model's size."""
        for name, wanted in model.state_dict().items():
            found = state.get(name)
            if not isinstance(found, torch.Tensor) or found.shape == wanted.shape:
                continue
            if name == "image_encoder.pos_embed" and found.shape[3:] == wanted.shape[3:]:
                grid = found.float().permute(0, 3, 1, 2)
                resized = functional.interpolate(grid, wanted.shape[1:3], mode="bicubic", align_corners=False)
                state[name] = resized.permute(0, 2, 3, 1)
            elif ".rel_pos_" in name and found.shape[1:] == wanted.shape[1:]:
                row = found.float().t().unsqueeze(0)
                state[name] = functional.interpolate(row, wanted.shape[0], mode="linear").squeeze(0).t()

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:  # noqa: ARG002
        side = model.image_encoder.img_size
        if spec.role == ENCODER:
            example = torch.rand(2, 3, side, side, device=model.device)
            images = {"image": {0: torch.export.Dim("images", min=1)}}
            return tracing.trace(self.encoder_graph(model), spec, [example], images)
        maps = [tensor.shape[1:] for tensor in spec.inputs if tensor.shape[0] == "images"]
        embeddings = [torch.rand(1, *map(int, shape), device=model.device) for shape in maps]
        return trace_decoder(self.decoder_graph(model), spec, embeddings, side)

    def reference(self, model: Any) -> Sam1Reference:
        return Sam1Reference(self.family, self.package.SamPredictor(model))

    def everything_reference(self, model: Any) -> GenerateMasks:
        return partial(official_records, self.package.SamAutomaticMaskGenerator, model)


def build_vit(modeling: Any, vit: Vit, image_size: int) -> torch.nn.Module:
    """Build a ``modeling.ImageEncoderViT`` with initial weights; ``modeling`` is as for assemble()."""
    encoder: torch.nn.Module = modeling.ImageEncoderViT(
        depth=vit.depth,
        embed_dim=vit.width,
        img_size=image_size,
        mlp_ratio=4,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
        num_heads=vit.heads,
        patch_size=PATCH,
        qkv_bias=True,
        use_rel_pos=True,
        global_attn_indexes=vit.global_blocks,
        window_size=14,
        out_chans=CHANNELS,
    )
    return encoder


def assemble(
    modeling: Any, encoder: torch.nn.Module, mask_decoder: Callable[..., torch.nn.Module], image_size: int
) -> torch.nn.Module:
    """Assemble an image encoder, the prompt encoder and the mask decoder, in eval mode.

    Args:
        encoder: takes images of ``image_size`` and returns CHANNELS channels for each patch.
        image_size: side of the image in pixels, a multiple of PATCH.

    Returns:
        A ``modeling.Sam``.
    """
    side = image_size // PATCH
    prompts = modeling.PromptEncoder(
        embed_dim=CHANNELS,
        image_embedding_size=(side, side),
        input_image_size=(image_size, image_size),
        mask_in_chans=16,
    )
    transformer = modeling.TwoWayTransformer(depth=2, embedding_dim=CHANNELS, mlp_dim=2048, num_heads=8)
    decoder = mask_decoder(
        num_multimask_outputs=3,
        transformer=transformer,
        transformer_dim=CHANNELS,
        iou_head_depth=3,
        iou_head_hidden_dim=256,
    )
    # Sam's default mean and standard deviation equal those of build_sam.
    model: torch.nn.Module = modeling.Sam(encoder, prompts, decoder)
    return model.eval()


EXPORTER = Sam1Exporter()
