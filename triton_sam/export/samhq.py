"""SAM-HQ: SAM1 with other graphs, from the `segment_anything_hq` package.

The graphs compute the same as the official predictor. Reference: segment_anything_hq.SamPredictor,
segment_anything_hq.modeling.{image_encoder,tiny_vit_sam,mask_decoder_hq}. In shapes, B is the number of images, C of
channels, P of prompts (objects), S the side of the image in pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from .._common.extras import missing
from . import mobilesam, sam1

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from .point_graphs import channel_norm

    with warnings.catch_warnings():  # the package imports timm's modules by their old names
        warnings.simplefilter("ignore")
        import segment_anything_hq
        from segment_anything_hq.modeling.tiny_vit_sam import Conv2d_BN
except ImportError as error:
    raise missing("exporting and verifying SAM-HQ needs", "export", error, "export,local") from error


class SamHqEncoder(nn.Module):
    """Computes the embeddings of images, and the edge features, which do not depend on a prompt.

    The official decoder computes these features for each prompt, from an early map of the encoder.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.maps = TinyMaps(model) if hasattr(model.image_encoder, "layers") else VitMaps(model)
        self.from_embeddings = model.mask_decoder.embedding_encoder
        self.from_early = model.mask_decoder.compress_vit_feat

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Encode images to image_embeddings (B,256,S/16,S/16) and hq_features (B,32,S/4,S/4)."""
        embeddings, early = self.maps(image)
        return embeddings, self.features(embeddings, early)

    def features(self, embeddings: Tensor, early: Tensor) -> Tensor:
        """Compute hq_features from the embeddings and from the early map (B,C,S/16,S/16)."""
        return _enlarge(self.from_embeddings, embeddings) + _enlarge(self.from_early, early)


class VitMaps(sam1.Sam1Encoder):
    """Computes the embeddings (B,256,S/16,S/16), and the map (B,C,S/16,S/16) after the first global block."""

    def embed(self, pixels: Tensor) -> Any:
        embeddings, maps = self.encoder(pixels)
        return embeddings, maps[0].permute(0, 3, 1, 2)


class TinyMaps(mobilesam.MobileSamEncoder):
    """Computes the embeddings (B,256,S/16,S/16), and the map (B,C,S/16,S/16) after the first stage with attention."""

    def embed(self, pixels: Tensor) -> Any:
        maps = self.stage_maps(pixels)
        return self.narrow(maps[-1]), maps[0]


class SamHqDecoder(sam1.Sam1Decoder):
    """Computes masks from embeddings and prompts, as SamPredictor.predict_torch does."""

    def forward(  # type: ignore[override]  # with the edge features
        self,
        image_embeddings: Tensor,
        hq_features: Tensor,
        point_coords: Tensor,
        point_labels: Tensor,
        mask_input: Tensor,
        has_mask_input: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decode P prompts; see sam1.Sam1Decoder.forward for the other arguments.

        Returns:
            The single mask (mask token 0): masks (P,1,S/4,S/4) and iou_predictions (P,1). The best by score of the
            three other mask tokens: multimask_masks (P,1,S/4,S/4) and multimask_iou_predictions (P,1). Masks are
            logits, including those of the token for fine masks.
        """
        prompts = (point_coords, point_labels, mask_input, has_mask_input)
        tokens, features = self.attend_to_prompts(image_embeddings, *prompts)
        scores = self.decoder.iou_prediction_head(tokens[:, 0])
        best = scores[:, 1:].argmax(dim=1, keepdim=True)
        best_score = scores[:, 1:].gather(1, best)

        weights = self.mask_weights(tokens[:, 1:5])
        best_weights = weights[:, 1:].gather(1, best.unsqueeze(2).expand(-1, -1, weights.shape[2]))
        coarse = torch.cat([weights[:, :1], best_weights], dim=1) @ features.flatten(2)

        conv_1, norm, activation, conv_2 = self.decoder.embedding_maskfeature
        hidden = activation(channel_norm(norm, conv_1(features)))
        edge_weights = self.decoder.hf_mlp(tokens[:, 5])
        logits: Any = coarse + edge_weights.unsqueeze(1) @ hq_features.flatten(2)
        masks = logits.unflatten(2, features.shape[2:]) + _weighted_convolution(conv_2, hidden, edge_weights)
        return masks[:, :1], scores[:, :1], masks[:, 1:], best_score

    def output_tokens(self) -> list[Tensor]:
        """Return the weights of the learned tokens; the last one is for fine masks."""
        return [*super().output_tokens(), self.decoder.hf_token.weight]


def _weighted_convolution(convolution: Any, x: Tensor, weights: Tensor) -> Tensor:
    """Compute the weighted sum of the outputs of a convolution without computing them, which is faster.

    The weights are multiplied into the kernel. This gives one map per kernel element; a convolution with a constant
    kernel shifts these maps and adds them.

    Returns:
        (P,1,h,w).
    """
    kernel = (weights @ convolution.weight.flatten(1)).unflatten(1, (-1, 9)).transpose(1, 2)
    maps = (kernel @ x.flatten(2)).unflatten(2, x.shape[2:])
    moves = torch.eye(9, device=x.device).reshape(1, 9, 3, 3)
    bias: Tensor = (weights @ convolution.bias).reshape(-1, 1, 1, 1)
    return functional.conv2d(maps, moves, padding=1) + bias


def _enlarge(layers: Any, x: Tensor) -> Tensor:
    """Compute two official transposed convolutions, with a normalisation between them."""
    first, norm, activation, second = layers
    enlarged: Tensor = second(activation(channel_norm(norm, first(x))))
    return enlarged


SIZES: Mapping[str, sam1.Vit | mobilesam.Tiny] = {
    "vit_tiny": mobilesam.SIZES["vit_t"],
    "vit_b": sam1.SIZES["vit_b"],
    "vit_l": sam1.SIZES["vit_l"],
    "vit_h": sam1.SIZES["vit_h"],
    "micro": mobilesam.SIZES["micro"],
    "micro_vit": sam1.Vit(64, 3, 2, (1, 2)),
}
"""The image encoder of each size. "micro" and "micro_vit" are not official, but fast sizes for tests."""


class SamHqExporter(sam1.Sam1Exporter):
    """Exports SAM-HQ from an official state dict.

    The name of the model's configuration is a size, for example "vit_tiny".
    """

    name = "samhq"
    package = segment_anything_hq
    encoder_graph = SamHqEncoder
    decoder_graph = SamHqDecoder

    def build(self, model: str, image_size: int) -> torch.nn.Module:
        """Build a segment_anything_hq.modeling.Sam as segment_anything_hq.build_sam does, for any image size."""
        modeling, chosen = segment_anything_hq.modeling, self.dimensions(SIZES, model)
        if isinstance(chosen, mobilesam.Tiny):
            encoder, channels = mobilesam.build_tiny(modeling, chosen, image_size), chosen.widths[2]
        else:
            encoder, channels = sam1.build_vit(modeling, chosen, image_size), chosen.width
        return sam1.assemble(modeling, encoder, partial(modeling.MaskDecoderHQ, vit_dim=channels), image_size)

    def randomise(self, model: Any, seed: int) -> None:
        super().randomise(model, seed)
        mobilesam.randomise_convolutions(model, seed, Conv2d_BN)


EXPORTER = SamHqExporter()
