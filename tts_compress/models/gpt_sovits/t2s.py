"""The T2S transformer as modules, in the place of upstream's scripted blocks.

Upstream runs its language model through TorchScript objects that hold bare tensors, taken from a
`TransformerEncoder` when the model is built: whoever exchanges the encoder's layers changes nothing
that is heard. Here the same tensors belong to `nn.Linear` and `nn.LayerNorm` children, which
upstream's own loops call as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["LAYER_NAMES", "KeyValues", "T2SBlock", "T2STransformer"]

_ROOM = 256
"""Steps that a cache has room for before it grows; ten seconds of speech."""

LAYER_NAMES = {
    "qkv.weight": "self_attn.in_proj_weight",
    "qkv.bias": "self_attn.in_proj_bias",
    "out.weight": "self_attn.out_proj.weight",
    "out.bias": "self_attn.out_proj.bias",
    "up.weight": "linear1.weight",
    "up.bias": "linear1.bias",
    "down.weight": "linear2.weight",
    "down.bias": "linear2.bias",
    "norm1.weight": "norm1.weight",
    "norm1.bias": "norm1.bias",
    "norm2.weight": "norm2.weight",
    "norm2.bias": "norm2.bias",
}
"""Tensors of a block, by the names that upstream's encoder layers have for them."""


class KeyValues(list[Tensor]):
    """Keys or values of all blocks, with room for what comes: no step copies those before it.

    Upstream's loops pass them back at each step, and where some texts of a batch have ended they
    put the rows that go on in the place of each tensor: `[batch, room, heads, width]`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # steps that are filled

    def add(self, index: int, values: Tensor) -> Tensor:
        """Keep what a block has for the next steps, `[batch, steps, heads, width]`.

        Returns:
            All that the block has so far.
        """
        end = self.length + values.shape[1]
        if index == len(self):
            self.append(_with_room(values[:, :0], end))
        elif self[index].shape[1] < end:
            self[index] = _with_room(self[index][:, : self.length], end)
        held = self[index]
        held[:, self.length : end] = values
        return held[:, :end]


class T2SBlock(nn.Module):
    """Attention and a feed-forward network, each followed by its norm.

    Args:
        layer: Upstream's encoder layer, whose tensors become this block's.
        heads: Of the attention.
    """

    def __init__(self, layer: Any, heads: int) -> None:
        super().__init__()
        self.heads = heads
        found = {ours: layer.get_parameter(theirs) for ours, theirs in LAYER_NAMES.items()}
        self.qkv = _linear(found, "qkv")
        self.out = _linear(found, "out")
        self.norm1 = _norm(found, "norm1", layer.norm1.eps)
        self.up = _linear(found, "up")
        self.down = _linear(found, "down")
        self.norm2 = _norm(found, "norm2", layer.norm2.eps)

    def forward(
        self,
        x: Tensor,
        allowed: Tensor | None,
        index: int = 0,
        cache: tuple[KeyValues, KeyValues] | None = None,
    ) -> Tensor:
        """Return `[batch, steps, width]`.

        Args:
            x: `[batch, steps, width]`.
            allowed: Which positions a step may look at, `[batch or 1, heads or 1, steps, all]`;
                None is all of them.
            index: Which block of the cache this one is.
            cache: Keys and values of the steps before, which these are added to; None reads no
                others and keeps none, so that gradients flow.
        """
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.unbind(2)  # each [batch, steps, heads, width / heads]
        if cache is not None:
            key, value = cache[0].add(index, key), cache[1].add(index, value)
        heads = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), allowed
        )
        x = self.norm1(x + self.out(heads.transpose(1, 2).flatten(2)))
        normed: Tensor = self.norm2(x + self.down(F.relu(self.up(x))))
        return normed


class T2STransformer(nn.Module):
    """The stack of blocks, with the methods that upstream's loops call.

    Args:
        blocks: In the order data flows.
    """

    def __init__(self, blocks: Iterable[T2SBlock]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(
        self, x: Tensor, allowed: Tensor | None, cache: tuple[KeyValues, KeyValues] | None = None
    ) -> Tensor:
        """Return `[batch, steps, width]`; the arguments are those of `T2SBlock`."""
        for index, block in enumerate(self.blocks):
            x = block(x, allowed, index, cache)
        return x

    def process_prompt(
        self,
        x: Tensor,
        attn_mask: Tensor,
        padding_mask: Tensor | None = None,
        torch_sdpa: bool = True,
    ) -> tuple[Tensor, KeyValues, KeyValues]:
        """Read text and prompt, as upstream's object of this name does.

        Args:
            x: `[batch, positions, width]`.
            attn_mask: True where a position must not be looked at.
            padding_mask: Upstream gives none.
            torch_sdpa: Upstream's choice of attention; both compute the same.

        Returns:
            Outputs, keys and values.

        Raises:
            ModelError: A padding mask is given.
        """
        del torch_sdpa
        if padding_mask is not None:
            raise ModelError("the T2S model is given a padding mask, which it was never tried with")
        keys, values = KeyValues(), KeyValues()
        outputs = self(x, ~attn_mask, (keys, values))
        keys.length = values.length = x.shape[1]
        return outputs, keys, values

    def decode_next_token(
        self,
        x: Tensor,
        k_cache: KeyValues,
        v_cache: KeyValues,
        attn_mask: Tensor | None = None,
        torch_sdpa: bool = True,
    ) -> tuple[Tensor, KeyValues, KeyValues]:
        """Read one more token of each text, as upstream's object of this name does.

        Args:
            x: `[batch, 1, width]`.
            k_cache: What the step before returned, with the rows that go on.
            v_cache: The same of values.
            attn_mask: True where a position must not be looked at; None is nowhere.
            torch_sdpa: Upstream's choice of attention; both compute the same.

        Returns:
            Outputs, keys and values.
        """
        del torch_sdpa
        # All heads have the same mask, and a text that is alone in its batch has no padding to
        # hide: attention without a mask is the faster one.
        padded = None if attn_mask is None else attn_mask[:, :1]
        allowed = None if padded is None or not padded.any() else ~padded
        outputs = self(x, allowed, (k_cache, v_cache))
        k_cache.length = v_cache.length = k_cache.length + x.shape[1]
        return outputs, k_cache, v_cache


def _with_room(held: Tensor, end: int) -> Tensor:
    """Return a tensor of more steps that begins with the held ones."""
    batch, steps, heads, width = held.shape
    made = held.new_empty(batch, end + max(_ROOM, end // 2), heads, width)
    made[:, :steps] = held
    return made


def _linear(found: Mapping[str, nn.Parameter], name: str) -> nn.Linear:
    weight = found[f"{name}.weight"]
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = weight, found[f"{name}.bias"]
    return layer


def _norm(found: Mapping[str, nn.Parameter], name: str, eps: float) -> nn.LayerNorm:
    weight = found[f"{name}.weight"]
    layer = nn.LayerNorm(weight.shape, eps=eps, device="meta")
    layer.weight, layer.bias = weight, found[f"{name}.bias"]
    return layer
