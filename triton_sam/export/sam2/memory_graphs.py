"""SAM2's memory as two modules: the attention to it, and its encoder. They export to small ONNX graphs without state.

They compute the same as SAM2Base._prepare_memory_conditioned_features and SAM2Base._encode_new_memory in
sam2.modeling.sam2_base. The caller chooses the memories and pointers of a frame.

In shapes, P is the number of objects, M of memories, K of object pointers, C of channels (256), c of a memory's
channels (64); h and w are S/16 for images with a side of S pixels, and L = h*w.
"""

from __future__ import annotations

from typing import Any

import torch
from sam2.modeling.sam2_utils import LayerNorm2d, get_1d_sine_pe
from torch import Tensor, nn

from ..point_graphs import channel_norm
from .graphs import attend

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines."""


class MemoryAttention(nn.Module):
    """Conditions the embeddings of a frame on memories and object pointers of other frames.

    The self-attention of the first layer reads only the image, so all objects share it.

    Args:
        fused: use ONNX Runtime's own attention operator. The module can then be traced, but not run.
    """

    memory_side: int | None = None
    """Height and width of a memory's map; None: the same as the embeddings."""
    rows: Tensor
    columns: Tensor
    memory_rows: Tensor
    memory_columns: Tensor
    cosines: Tensor
    sines: Tensor
    no_memory: Tensor

    def __init__(self, model: Any, *, fused: bool) -> None:
        super().__init__()
        self.model = model
        self.side = model.image_size // model.backbone_stride
        attention = model.memory_attention
        self.layers = nn.ModuleList(_Layer(layer, fused) for layer in attention.layers)
        scale = 0.1 if attention.pos_enc_at_input else 0.0
        axes = _sine_axes(model.image_encoder.neck.position_encoding, self.side, scale)
        memory_axes = _sine_axes(model.memory_encoder.position_encoding, self.memory_side or self.side)
        tables = (*axes, *memory_axes, *_rotation_axes(attention.layers[0].self_attn, self.side))
        names = ("rows", "columns", "memory_rows", "memory_columns", "cosines", "sines")
        for name, table in zip(names, tables, strict=True):
            self.register_buffer(name, table.clone(), persistent=False)
        self.register_buffer("no_memory", model.no_mem_embed.detach().reshape(-1).clone(), persistent=False)

    def forward(
        self,
        image_embeddings: Tensor,
        memories: Tensor,
        memory_ages: Tensor,
        object_pointers: Tensor,
        pointer_ages: Tensor,
    ) -> Tensor:
        """Condition the embeddings of one frame for P objects.

        Args:
            image_embeddings: (1 or P,C,h,w) from Sam2Encoder, whose no-memory embedding is subtracted here.
            memories: (P,M,c,h,w) from MemoryEncoder; M is at least 1. Subclasses may use another shape.
            memory_ages: (P,M) steps between the memory's frame and this one, 1 to 6; 0 for a prompted frame.
            pointer_ages: (P,K) steps between the pointer's frame and this one, divided by min(frames, 16) - 1.

        Returns:
            (P,C,h,w) embeddings for the TrackingDecoder.
        """
        rotation = self._rotation()
        x = image_embeddings.flatten(2).transpose(1, 2) + (self._spread(self.rows, self.columns) - self.no_memory)
        memory = self._tokens(memories)
        moments = self.model.maskmem_tpos_enc.reshape(-1, memory.shape[-1])
        moment = moments[(memory_ages + (len(moments) - 1)) % len(moments)].unsqueeze(2)
        keys = memory + (self._memory_positions() + moment)
        pointers: Tensor = torch.unflatten(object_pointers, 2, (-1, memory.shape[-1]))
        pointer_keys = (pointers + self._pointer_positions(pointer_ages).unsqueeze(2)).flatten(1, 2)
        values = torch.cat([memory.flatten(1, 2), pointers.flatten(1, 2)], dim=1)
        key_rotation = self._key_rotation(rotation)
        for layer in self.layers:
            x = layer(x, keys, pointer_keys, values, rotation, key_rotation)
        x = self.model.memory_attention.norm(x)
        conditioned: Tensor = x.transpose(1, 2).unflatten(2, (self.side, self.side))
        return conditioned

    def _tokens(self, memories: Tensor) -> Tensor:
        """Return the (P,M,T,c) tokens of memories."""
        return memories.flatten(3).transpose(2, 3)

    def _memory_positions(self) -> Tensor:
        """Return the (T,c) encoding of the positions of tokens."""
        return self._spread(self.memory_rows, self.memory_columns)

    def _key_rotation(self, rotation: Rotation) -> Rotation:
        """Return the (T,d/2) cosines and sines by which the keys of tokens are rotated."""
        return rotation

    def _pointer_positions(self, ages: Tensor) -> Tensor:
        """Return the (P,K,c) encoding of the pointers' ages; zeros in SAM2.0, which does not encode them."""
        if not self.model.add_tpos_enc_to_obj_ptrs:
            return torch.zeros_like(ages).unsqueeze(2)
        projection = self.model.obj_ptr_tpos_proj
        width = self.model.hidden_dim if self.model.proj_tpos_enc_in_obj_ptrs else self.model.mem_dim
        positions: Tensor = projection(get_1d_sine_pe(ages, dim=width))
        return positions

    def _rotation(self) -> Rotation:
        """Return the (L,d/2) cosines and sines by which keys and queries are rotated."""
        cosines, sines = (self._spread(table, table, columns_first=True) for table in (self.cosines, self.sines))
        return cosines, sines

    def _spread(self, rows: Tensor, columns: Tensor, columns_first: bool = False) -> Tensor:
        """Return the (L,2n) table of all positions from the (h,n) table of rows and the (w,n) table of columns.

        It is a constant of the graph. The file contains the small tables, and ONNX Runtime computes the large one when
        it loads the model.
        """
        side, half = rows.shape
        by_row = rows.unsqueeze(1).expand(side, side, half)
        by_column = columns.unsqueeze(0).expand(side, side, half)
        parts = [by_column, by_row] if columns_first else [by_row, by_column]
        return torch.cat(parts, dim=2).flatten(0, 1)


class _Layer(nn.Module):
    """One layer of the memory attention; see MemoryAttentionLayer in sam2.modeling.memory_attention."""

    def __init__(self, layer: Any, fused: bool) -> None:
        super().__init__()
        self.layer = layer
        self.own = _RotaryAttention(layer.self_attn, fused)
        self.cross = _RotaryAttention(layer.cross_attn_image, fused)

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        pointer_keys: Tensor,
        values: Tensor,
        rotation: Rotation,
        key_rotation: Rotation,
    ) -> Tensor:
        """Run the layer.

        Args:
            values: (P,M*T+4K,c) tokens of memories and of pointers, without positions.

        Returns:
            (P,L,C)
        """
        layer = self.layer
        y = layer.norm1(x)
        x = x + self.own.attend(self.own.query(y, rotation), self.own.key(y, rotation), y)
        y = layer.norm2(x)
        query = self.cross.query(y, rotation).expand(keys.shape[0], -1, -1)
        key = torch.cat([self.cross.key(keys, key_rotation).flatten(1, 2), self.cross.key(pointer_keys)], dim=1)
        x = x + self.cross.attend(query, key, values)
        y = layer.linear2(layer.activation(layer.linear1(layer.norm3(x))))
        result: Tensor = x + y
        return result


class _RotaryAttention(nn.Module):
    """Attention with rotated queries and keys, with the weights of RoPEAttention in sam2.modeling.sam.transformer.

    The official module rotates neighbouring channels, (0, 1), (2, 3) and so on, as complex numbers. Here, the rows of
    both projections are sorted with the even channels first, so a rotation multiplies halves. The products of queries
    and keys stay the same.
    """

    def __init__(self, attention: Any, fused: bool) -> None:
        super().__init__()
        self.attention = attention
        self.fused = fused
        self.projections = nn.ModuleDict(
            {"query": _evens_first(attention.q_proj), "key": _evens_first(attention.k_proj)}
        )

    def query(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Return (P,L,d) rotated queries of (P,L,C)."""
        return _rotate(self.projections["query"](x), rotation)

    def key(self, x: Tensor, rotation: Rotation | None = None) -> Tensor:
        """Return (...,L,d) keys of (...,L,n), rotated except for pointers."""
        keys: Tensor = self.projections["key"](x)
        return keys if rotation is None else _rotate(keys, rotation)

    def attend(self, query: Tensor, key: Tensor, x: Tensor) -> Tensor:
        """Return the (P,L,C) output for queries (P,L,d), keys (P,T,d), and inputs (P,T,n) of the value projection.

        The rows of the softmax sum to 1, so the projection of a weighted sum is the weighted sum of projections. If the
        projection widens its inputs (64 channels of memories become 256 in the official sizes), it comes last, which
        makes the second product of the attention smaller by the same factor.
        """
        project = self.attention.v_proj
        is_wider = project.out_features > project.in_features
        value = x if is_wider else project(x)
        if self.fused:
            attended = attend(query, key, value, self.attention.num_heads)
        else:
            scale = query.shape[-1] ** -0.5
            attended = ((query * scale) @ key.transpose(1, 2)).softmax(dim=-1) @ value
        output: Tensor = self.attention.out_proj(project(attended) if is_wider else attended)
        return output


def _evens_first(projection: nn.Linear) -> nn.Linear:
    """Return a projection with its even output channels first, then the odd ones."""
    size = projection.out_features
    order = torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2)]).to(projection.weight.device)
    changed: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear, projection.in_features, size, device=projection.weight.device
    )
    with torch.no_grad():
        changed.weight.copy_(projection.weight[order])
        changed.bias.copy_(projection.bias[order])
    changed.requires_grad_(False)
    return changed


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Multiply the pairs (i, i + d/2) of (...,L,d) channels by unit complex numbers, (L,d/2) cosines and sines."""
    cosines, sines = rotation
    real, imaginary = x.chunk(2, dim=-1)
    return torch.cat([real * cosines - imaginary * sines, real * sines + imaginary * cosines], dim=-1)


def _sine_axes(encoding: Any, side: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the (h,n) rows and (w,n) columns of a PositionEmbeddingSine, whose channels each depend on only one."""
    table = encoding(torch.zeros(1, 1, side, side))[0].detach() * scale
    half = len(table) // 2
    return table[:half, :, 0].T, table[half:, 0, :].T


def _rotation_axes(attention: Any, side: int) -> tuple[Tensor, Tensor]:
    """Return the (side,d/4) cosines and sines of RoPEAttention for one axis; both axes are equal."""
    half = attention.internal_dim // 4
    turns = attention.compute_cis(end_x=side, end_y=side)[:side, :half]
    return turns.real, turns.imag


class MemoryEncoder(nn.Module):
    """Encodes the mask of an object in a frame into a memory."""

    no_memory: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("no_memory", model.no_mem_embed.detach().reshape(1, -1, 1, 1).clone(), persistent=False)

    def forward(
        self, image_embeddings: Tensor, masks: Tensor, object_score_logits: Tensor, is_prompted: Tensor
    ) -> Tensor:
        """Encode the masks of P objects in one frame.

        Args:
            image_embeddings: (1 or P,C,h,w) from Sam2Encoder, whose no-memory embedding is subtracted here.
            object_score_logits: (P,1) above 0 if the object is visible.
            is_prompted: (P,) 1 if the frame has a prompt for the object, else 0.

        Returns:
            (P,c,h,w) memories in FP32, which the official predictor then rounds to bfloat16.
        """
        model, encoder = self.model, self.model.memory_encoder
        logits = self._enlarged(masks)
        prompted = is_prompted.reshape(-1, 1, 1, 1) > 0.5
        mask = torch.where(prompted, (logits > 0).to(logits.dtype), logits.sigmoid())
        mask = mask * model.sigmoid_scale_for_mem_enc + model.sigmoid_bias_for_mem_enc
        for step in encoder.mask_downsampler.encoder:
            mask = channel_norm(step, mask) if isinstance(step, LayerNorm2d) else step(mask)
        x = encoder.fuser.proj(encoder.pix_feat_proj(image_embeddings - self.no_memory) + mask)
        for block in encoder.fuser.layers:
            x = _fuse(block, x)
        memory: Tensor = encoder.out_proj(x)
        if model.no_obj_embed_spatial is None:  # SAM2.0
            return memory
        absent = (object_score_logits <= 0).to(memory.dtype).unsqueeze(2).unsqueeze(3)
        marked: Tensor = memory + absent * model.no_obj_embed_spatial.reshape(1, -1, 1, 1)
        return marked

    def _enlarged(self, masks: Tensor) -> Tensor:
        """Return the logits (P,1,h*16,w*16) of low-resolution masks."""
        side = (self.model.image_size, self.model.image_size)
        logits: Tensor = nn.functional.interpolate(masks, size=side, mode="bilinear", align_corners=False)
        return logits


def _fuse(block: Any, x: Tensor) -> Tensor:
    """Compute CXBlock of sam2.modeling.memory_encoder with 1 x 1 convolutions instead of transposed products."""
    y = channel_norm(block.norm, block.dwconv(x))
    y = block.act(_pointwise(y, block.pwconv1.weight, block.pwconv1.bias))
    weight, bias = block.pwconv2.weight, block.pwconv2.bias
    if block.gamma is not None:
        weight, bias = weight * block.gamma.unsqueeze(1), bias * block.gamma
    result: Tensor = x + _pointwise(y, weight, bias)
    return result


def _pointwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result: Tensor = nn.functional.conv2d(x, weight.unsqueeze(2).unsqueeze(3), bias)
    return result
