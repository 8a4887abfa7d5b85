"""SAM1: its two graphs, its exporter, and its official predictor, from the `segment_anything` package.

The graphs compute the same as SamPredictor, and export to small ONNX graphs. Reference: segment_anything.SamPredictor,
segment_anything.modeling.{sam,prompt_encoder,mask_decoder}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from .._common.extras import missing
from ..errors import ConfigurationError
from ..families.base import LABEL_BOX_BOTTOM_RIGHT, LABEL_BOX_TOP_LEFT, Family, FloatArray
from ..families.sam1 import PIXEL_MEAN, PIXEL_STD
from ..families.tables import ENCODER, ModelSpec
from .exporter import Exporter
from .reference import Answer, GenerateMasks, Prompt, official_records

try:
    import onnx
    import segment_anything.modeling
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from . import tracing
    from .point_graphs import PointDecoder, channel_norm, trace_decoder
except ImportError as error:
    raise missing("exporting and verifying SAM1 needs", "export", error, "export,local") from error


class Sam1Encoder(nn.Module):
    """Computes the embeddings of images, as SamPredictor.set_torch_image does."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.image_encoder
        self.register_buffer("mean", torch.tensor(PIXEL_MEAN).reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(PIXEL_STD).reshape(1, 3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """Encode images.

        Args:
            image: (B,3,S,S) RGB in 0..1; S is the image size in pixels. The padding has the mean colour, PIXEL_MEAN of
                families.sam1.

        Returns:
            image_embeddings (B,256,S/16,S/16).
        """
        return self.embed((image - self.mean) / self.std)

    def embed(self, pixels: Tensor) -> Tensor:
        """Compute the embeddings of normalised pixels."""
        embeddings: Tensor = self.encoder(pixels)
        return embeddings


class Sam1Decoder(PointDecoder):
    """Computes masks from embeddings and prompts, as SamPredictor.predict_torch does.

    One call gives both the single mask and the three multimasks.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model.prompt_encoder, model.mask_decoder)

    def forward(
        self,
        image_embeddings: Tensor,
        point_coords: Tensor,
        point_labels: Tensor,
        mask_input: Tensor,
        has_mask_input: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decode P prompts of up to N points each, in a frame with a side of S pixels.

        Args:
            point_coords: (P,N,2) x, y in pixels of the frame, without the shift of 0.5 to pixel centres; N may be 0.
            point_labels: (P,N) 0 background, 1 foreground, 2 and 3 corners of a box, -1 padding, -2 no point.
            mask_input: (1 or P,1,S/4,S/4) logits of an earlier prediction.
            has_mask_input: (1 or P,) 1 if mask_input is a prompt, 0 to ignore it.

        Returns:
            The single mask (mask token 0): masks (P,1,S/4,S/4) and iou_predictions (P,1). The multimasks (the other
            mask tokens): multimask_masks (P,3,S/4,S/4) and multimask_iou_predictions (P,3). Masks are logits.
        """
        prompts = (point_coords, point_labels, mask_input, has_mask_input)
        tokens, features = self.attend_to_prompts(image_embeddings, *prompts)
        masks = self._masks(tokens[:, 1 : 1 + self.decoder.num_mask_tokens], features)
        scores = self.decoder.iou_prediction_head(tokens[:, 0])
        return masks[:, :1], scores[:, :1], masks[:, 1:], scores[:, 1:]

    def attend_to_prompts(
        self, embeddings: Tensor, coords: Tensor, labels: Tensor, mask: Tensor, has_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens (P,T,256), with output_tokens() first, and the features (P,32,S/4,S/4).

        See forward() for the arguments.
        """
        points, is_point = self._embed_points(coords, labels)
        is_point = is_point & self._without_padding_behind_a_box(labels)
        dense = self._embed_mask(mask, has_mask)
        tokens, ignored = self._tokens(self.output_tokens(), points, is_point)
        tokens, image = self._transform(embeddings.flatten(2) + dense, tokens, ignored)

        features = image.transpose(1, 2).reshape(-1, image.shape[2], *self.prompt_encoder.image_embedding_size)
        upscale_1, norm, activation_1, upscale_2, activation_2 = self.decoder.output_upscaling
        features = activation_1(channel_norm(norm, upscale_1(features)))
        return tokens, activation_2(upscale_2(features))

    def output_tokens(self) -> list[Tensor]:
        """Return the weights (n,256) of the learned tokens: the score token, then the mask tokens."""
        return [self.decoder.iou_token.weight, self.decoder.mask_tokens.weight]

    def _without_padding_behind_a_box(self, labels: Tensor) -> Tensor:
        """Return (P,N+1) bool: False for the padding token of a prompt that has a box, True for all other tokens.

        The official PromptEncoder.forward appends the padding token only without boxes: pad=(boxes is None).
        """
        is_corner = (labels == LABEL_BOX_TOP_LEFT) | (labels == LABEL_BOX_BOTTOM_RIGHT)
        has_no_box = is_corner.to(torch.int64).sum(dim=1, keepdim=True) == 0
        return torch.cat([torch.ones_like(is_corner), has_no_box], dim=1)


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
