"""The two SAM1 graphs as modules. They compute the same as SamPredictor, and export to small ONNX graphs.

Reference: segment_anything.SamPredictor, segment_anything.modeling.{sam,prompt_encoder,mask_decoder}.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...families.base import LABEL_BOX_BOTTOM_RIGHT, LABEL_BOX_TOP_LEFT
from ...families.sam1 import PIXEL_MEAN, PIXEL_STD
from ..point_graphs import PointDecoder, channel_norm


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
