"""The attention of DeBERTa in one kernel, on a GPU.

    score(q, k) = (Q[q] . K[k]  +  Q[q] . PK[d]  +  K[k] . PQ[d]) / sqrt(3 * size),    d = the bucket of q - k

(He et al. 2021, equation 4.) transformers writes the three terms as matrices of all pairs of tokens, gathers two of them, and
adds, masks and normalises in separate passes over memory. Here the two products with position embeddings are written once,
and everything else stays in registers. The outputs differ from those of transformers only by rounding.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from tamis.errors import MissingExtra, require

ATTENTION = "DisentangledSelfAttention"
"""The class of transformers that is replaced."""

QUERIES, KEYS, WARPS, STAGES = 64, 64, 4, 2
"""Queries and keys that a program processes at a time, its warps, and the loads it prepares in advance."""


def fuse(network: Any) -> int:
    """Replace the attention modules of a DeBERTa network on a GPU; returns how many were replaced.

    Does nothing for other networks, or without triton. The modules keep their weights.
    """
    try:
        require("triton", extra="models", purpose="kernels for networks on a GPU")
    except MissingExtra:
        return 0
    replaced = 0
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module).__name__ == ATTENTION and _fits(module):
                setattr(parent, name, _fused_class()(module))
                replaced += 1
    return replaced


def _fits(module: Any) -> bool:
    """Whether the module has what the kernel computes: both position terms, and heads of 16 to 128 numbers."""
    return (
        bool(module.relative_attention)
        and set(module.pos_att_type) == {"c2p", "p2c"}
        and module.attention_head_size in (16, 32, 64, 128)
    )


@functools.cache
def _fused_class() -> Any:
    import torch

    class FusedAttention(torch.nn.Module):
        """Takes the place of `DisentangledSelfAttention`, with the same parameters and results."""

        def __init__(self, original: Any) -> None:
            super().__init__()
            self.query_proj, self.key_proj = original.query_proj, original.key_proj
            self.value_proj = original.value_proj
            shared = original.share_att_key
            self.pos_key_proj = original.key_proj if shared else original.pos_key_proj
            self.pos_query_proj = original.query_proj if shared else original.pos_query_proj
            self.num_heads, self.size = original.num_attention_heads, original.attention_head_size
            self.span = original.pos_ebd_size

        def forward(
            self,
            hidden_states: Any,
            attention_mask: Any,
            output_attentions: bool = False,
            query_states: Any = None,
            relative_pos: Any = None,
            rel_embeddings: Any = None,
        ) -> tuple[Any, None]:
            assert query_states is None, "only the encoder of DeBERTa's decoder has other queries"
            assert not output_attentions, "the probabilities are never written"
            rows, length, _ = hidden_states.shape
            heads, size = self.num_heads, self.size
            query = self.query_proj(hidden_states).view(rows * length, heads, size)
            key = self.key_proj(hidden_states).view(rows * length, heads, size)
            value = self.value_proj(hidden_states).view(rows * length, heads, size)
            positions = rel_embeddings[: 2 * self.span]
            pos_key = self.pos_key_proj(positions).view(-1, heads, size).permute(1, 2, 0)
            pos_query = self.pos_query_proj(positions).view(-1, heads, size).permute(1, 2, 0)
            to_position = torch.bmm(query.transpose(0, 1), pos_key)  # heads, tokens of all rows, buckets
            from_position = torch.bmm(key.transpose(0, 1), pos_query)
            mask = attention_mask.reshape(rows, -1, length)[:, 0].to(torch.int8).contiguous()  # of the first token
            table = bucket_table(relative_pos, self.span)
            out = _attend(query, key, value, to_position, from_position, table, mask)
            return out.view(rows, length, heads * size), None

    return FusedAttention


def bucket_table(relative_pos: Any, span: int) -> Any:
    """int32[2 * length - 1]: the bucket of each distance between tokens, from -(length - 1) on.

    `relative_pos` has it for each pair of tokens, but it depends only on their distance.
    """
    import torch

    pairs = relative_pos.reshape(-1, relative_pos.shape[-2], relative_pos.shape[-1])[0]
    by_distance = torch.cat([pairs[0, 1:].flip(0), pairs[:, 0]])
    return (by_distance + span).clamp(0, 2 * span - 1).to(torch.int32).contiguous()


def _attend(query: Any, key: Any, value: Any, to_position: Any, from_position: Any, table: Any, mask: Any) -> Any:
    """The attention of all rows: query, key and value [tokens, heads, size], mask [rows, length]."""
    import torch

    (rows, length), (_, heads, size) = mask.shape, query.shape
    out = torch.empty_like(query)
    scale = 1 / (math.sqrt(3 * size) * math.log(2))  # the kernel computes powers of two
    grid = (-(-length // QUERIES), rows * heads)
    _kernel()[grid](
        query, key, value, to_position, from_position, table, mask, out,
        rows, length, heads, to_position.shape[2], scale,
        size=size, queries=QUERIES, keys=KEYS, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


@functools.cache
def _kernel() -> Any:
    from tamis.models.deberta_kernel import attend

    return attend
