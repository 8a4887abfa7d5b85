"""The graphs that find every instance of a concept, as modules with the names and shapes of the wire contract.

The graphs call the submodules of transformers' Sam3Model, or use their weights in concept_layers. The code between them
is our own: it supports several prompts per image, and prompts with and without example boxes in one batch.
Reference: transformers 5, models/sam3/modeling_sam3.py.

In shapes, B is the number of images, P of prompts on one image, N of example boxes, T of tokens, and Q of queries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import roi_align
from transformers.models.sam3 import modeling_sam3

from ...families.concepts import LABEL_NO_BOX
from .concept_layers import attend_to_tokens, decode, encode_examples, fuse, token_bias

_official: Any = modeling_sam3  # it is partly untyped


class ConceptEncoder(nn.Module):
    """Computes the detector's feature maps of images from the states of the backbone, an output of EncoderWithStates.

    Args:
        detector: a transformers Sam3Model, whose backbone has the same weights as the tracker's.
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.neck = detector.vision_encoder.neck
        self.first_layer = detector.detr_encoder.layers[0]
        self.convolutions = detector.mask_decoder.pixel_decoder.conv_layers
        self.register_buffer("position", _position(detector), persistent=False)

    position: Tensor

    def forward(self, backbone_states: Tensor) -> tuple[Tensor, ...]:
        """Return concept_features.0 (B,256,288,288), .1 (B,256,144,144) and .2 (B,256,72,72), and concept_states.

        Two parts of the detector do not depend on the concept, so they are computed here, once for all concepts:
        concept_features.0 and .1 are after their convolutions in the mask decoder (see MaskHead), and concept_states
        (B,256,72,72) is .2 after the first self-attention.

        Args:
            backbone_states: (B,C,72,72).
        """
        features: Any = self.neck(backbone_states)[0][:3]
        attended = self._attend(features[-1].flatten(2).transpose(1, 2))
        states = attended.transpose(1, 2).reshape(-1, attended.shape[-1], *features[-1].shape[2:])
        return self.convolutions[1](features[0]), self.convolutions[0](features[1]), features[2], states

    def _attend(self, states: Tensor) -> Tensor:
        """Apply the first self-attention of the detector; see the first part of Sam3DetrEncoderLayer.forward."""
        layer, position = self.first_layer, self.position.flatten(2).transpose(1, 2)
        normal = layer.layer_norm1(states)
        placed = normal + position
        changed: Tensor = layer.self_attn(query=placed, key=placed, value=normal)[0]
        return states + changed


class TextEncoder(nn.Module):
    """Computes the features of texts, as Sam3Model.get_text_features does."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.text, self.projection = detector.text_encoder, detector.text_projection

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode texts.

        Args:
            attention_mask: (P,T) int64: 1 for a token, 0 for padding.

        Returns:
            text_features (P,T,256).
        """
        hidden = self.text(input_ids=input_ids, attention_mask=attention_mask, return_dict=True).last_hidden_state
        features: Tensor = self.projection(hidden)
        return features


class Detector(nn.Module):
    """Finds the boxes and scores of the instances of concepts in one image, as Sam3Model.forward does.

    MaskHead computes the masks, but not for prompts without an instance or for the other queries of Q.
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.geometry, self.encoder = detector.geometry_encoder, detector.detr_encoder
        self.decoder, self.scoring = detector.detr_decoder, detector.dot_product_scoring
        self.masks = detector.mask_decoder
        self.register_buffer("position", _position(detector), persistent=False)

    position: Tensor

    def forward(
        self,
        states: Tensor,
        examples_coarse: Tensor,
        text_features: Tensor,
        attention_mask: Tensor,
        boxes: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Find the instances of P prompts in one image.

        Args:
            examples_coarse: (1,256,72,72), concept_features.2 from ConceptEncoder, of the image with the boxes. That is
                usually the same image; the reference does not support examples from other images.
            attention_mask: (P,T) int64: 1 for a token, 0 for padding.
            boxes: (P,N,4) centre x, centre y, width, height in 0..1; N may be 0.
            labels: (P,N) int64: 1 positive, 0 negative, LABEL_NO_BOX no box.

        Returns:
            pred_boxes (P,Q,4) x1, y1, x2, y2 in 0..1, pred_logits (P,Q), presence_logits (P,1), and for MaskHead
            mask_queries (P,Q,256) and mask_features (P,256,72,72). The score of an instance is
            sigmoid(pred_logits) * sigmoid(presence_logits).
        """
        place = self.position.flatten(2).transpose(1, 2)
        examples, exists = self._examples(examples_coarse, boxes, labels)
        length = _longest(attention_mask)
        features = torch.cat([text_features.narrow(1, 0, length), examples], dim=1)
        exists = torch.cat([attention_mask.narrow(1, 0, length) == 1, exists], dim=1)
        bias = token_bias(exists)

        encoded = self._encode(states.flatten(2).transpose(1, 2), place, features, bias)
        queries, proposed, presence = decode(self.decoder, encoded, encoded + place, features, bias)
        logits = self.scoring(decoder_hidden_states=queries[None], text_features=features, text_mask=exists)
        found = _official.box_cxcywh_to_xyxy(proposed)
        return found, logits[0].squeeze(-1), presence, queries, self._prompted(encoded, features, bias)

    def _encode(self, states: Tensor, position: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """Return (P,5184,256), the image fused with the prompts; see Sam3DetrEncoder.forward.

        ConceptEncoder has already applied the first self-attention.
        """
        first, *others = self.encoder.layers
        states = fuse(first, states, features, bias)
        for layer in others:
            normal = layer.layer_norm1(states)
            placed = normal + position
            states = states + layer.self_attn(query=placed, key=placed, value=normal)[0]
            states = fuse(layer, states, features, bias)
        return states

    def _prompted(self, states: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """Return (P,256,72,72), the image fused with the prompts; see the first half of Sam3MaskDecoder.forward."""
        decoder = self.masks
        changed = attend_to_tokens(decoder.prompt_cross_attn, decoder.prompt_cross_attn_norm(states), features, bias)
        side = self.position.shape[-1]
        mixed: Any = states + changed
        prompted: Tensor = mixed.transpose(1, 2).unflatten(2, (side, side))
        return prompted

    def _examples(self, coarse: Tensor, boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (P,N+2,256) tokens of example boxes and (P,N+2) whether they exist; see Sam3GeometryEncoder.forward.

        The same graph must work without boxes, for which the reference has no tokens. So this appends one box that does
        not exist, and the last token, which represents all boxes, exists only if there is a box.
        """
        geometry, prompts = self.geometry, boxes.shape[0]
        boxes = torch.cat([boxes, boxes.new_full((prompts, 1, 4), 0.5)], dim=1)
        labels = torch.cat([labels, labels.new_full((prompts, 1), LABEL_NO_BOX)], dim=1)
        exists = labels != LABEL_NO_BOX
        tokens = self._embed_boxes(coarse, boxes, (labels == 1).to(torch.int64))
        tokens = torch.cat([tokens, geometry.cls_embed.weight.expand(prompts, 1, -1)], dim=1)
        tokens = geometry.prompt_layer_norm(geometry.final_proj(tokens))
        bias = token_bias(torch.cat([exists, torch.ones_like(exists[:, :1])], dim=1))
        image = coarse.flatten(2).transpose(1, 2)
        placed = image + self.position.flatten(2).transpose(1, 2)
        for layer in geometry.layers:
            tokens = encode_examples(layer, tokens, bias, image, placed)
        some = exists.to(torch.int64).sum(dim=1, keepdim=True) > 0
        return geometry.output_layer_norm(tokens), torch.cat([exists, some], dim=1)

    def _embed_boxes(self, coarse: Tensor, boxes: Tensor, kinds: Tensor) -> Tensor:
        """Return (P,N,256) tokens of boxes; see Sam3GeometryEncoder._encode_boxes."""
        geometry = self.geometry
        sizes, flat = boxes.shape[:2], boxes.flatten(0, 1)
        normal = geometry.vision_layer_norm(coarse.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        corners = _official.box_cxcywh_to_xyxy(flat) * float(coarse.shape[-1])  # the feature map is square
        regions = torch.cat([torch.zeros_like(corners[:, :1]), corners], dim=1)
        pooled = geometry.boxes_pool_project(roi_align(normal, regions, geometry.roi_size)).flatten(1)
        placed = geometry._encode_box_coordinates(*flat.unbind(-1))  # noqa: SLF001 - it has no public alternative
        placed = geometry.boxes_pos_enc_project(placed)
        embedded: Tensor = (geometry.boxes_direct_project(flat) + pooled + placed).unflatten(0, sizes)
        kind: Tensor = geometry.label_embed(kinds)
        return embedded + kind


def _longest(attention_mask: Tensor) -> int:
    """Return the number of tokens in the longest text. The mask (P,T) is 0 for the padding that follows each text.

    Results do not depend on the padding that all texts share, which would only take time.
    """
    tokens = attention_mask.shape[1]
    places = torch.arange(1, tokens + 1, device=attention_mask.device)
    length = int(((attention_mask == 1) * places).max().item())
    torch._check(length >= 1)  # noqa: SLF001 - torch documents it
    torch._check(length <= tokens)  # noqa: SLF001
    return length


def _position(detector: Any) -> Tensor:
    """Return the encoding (1,256,72,72) of the positions of the coarsest map."""
    channels, side = detector.config.detr_encoder_config.hidden_size, detector.config.image_size // 14
    found: Tensor = detector.vision_encoder.neck.position_encoding(
        torch.Size((1, channels, side, side)), "cpu", torch.float32
    )
    return found


class UpsampledConvolution(nn.Module):
    """Doubles a map by repeating pixels, and convolves it with 3x3 weights, in 16 of 36 multiplications.

    The three taps along an axis read only two different pixels, because pixels are repeated. Which two depends on
    whether the position is even or odd. So a 2x2 convolution with four times the channels computes all four cases.

    Args:
        convolution: a Conv2d(C, C, 3, padding=1), whose bias is ignored.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        first, middle, last = convolution.weight.unbind(2)  # (C,C,3) each: the rows of taps
        rows = (torch.stack([first, middle + last], 2), torch.stack([first + middle, last], 2))  # (C,C,2,3)
        kinds = []
        for taps in rows:
            left, centre, right = taps.unbind(3)
            kinds += [torch.stack([left, centre + right], 3), torch.stack([left + centre, right], 3)]
        self.weight = nn.Parameter(torch.cat(kinds), requires_grad=False)  # (4C,C,2,2)

    def forward(self, image: Tensor) -> Tensor:
        """Return (P,C,2h,2w) for (P,C,h,w)."""
        height, width = image.shape[-2:]
        kinds = functional.conv2d(image, self.weight, padding=1).chunk(4, dim=1)
        placed = [
            kinds[2 * row + column][:, :, row : row + height, column : column + width]
            for row in range(2)
            for column in range(2)
        ]
        lines = [torch.stack(placed[:2], dim=-1), torch.stack(placed[2:], dim=-1)]  # (P,C,h,w,2) each
        return torch.stack(lines, dim=3).reshape(-1, image.shape[1], 2 * height, 2 * width)


class MaskHead(nn.Module):
    """Computes the masks of chosen instances, as the second half of Sam3MaskDecoder.forward does.

    Sam3PixelDecoder adds a map of the image to the doubled map of the previous step, and convolves the sum. Convolution
    is linear, so ConceptEncoder computes the part for the image's map once.
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        decoder = detector.mask_decoder
        pixels = decoder.pixel_decoder
        self.steps = nn.ModuleList(UpsampledConvolution(each) for each in pixels.conv_layers[:2])
        self.norms = pixels.norms[:2]
        self.projection, self.embedder = decoder.instance_projection, decoder.mask_embedder

    def forward(self, fine: Tensor, middle: Tensor, mask_features: Tensor, mask_queries: Tensor) -> Tensor:
        """Compute masks.

        Args:
            mask_queries: (P,I,256), the rows of I instances from Detector.

        Returns:
            pred_masks (P,I,288,288) logits.
        """
        pixels = mask_features
        for step, norm, image in zip(self.steps, self.norms, (middle, fine), strict=True):
            pixels = functional.relu(norm(step(pixels) + image))
        # The projection of the pixels is applied to the fewer instances: m (W p) = (m W) p.
        embedded, size = self.embedder(mask_queries), pixels.shape[2:]
        weights = embedded @ self.projection.weight.flatten(1)
        offsets = embedded @ self.projection.bias
        masks: Tensor = (weights @ pixels.flatten(2) + offsets.unsqueeze(2)).unflatten(2, size)
        return masks
