"""Modules that replace upstream's where those cannot be compressed, or copy too much.

Upstream runs its language model through TorchScript objects that hold bare tensors, taken from a
`TransformerEncoder` when the model is built: exchanging the encoder's layers changes no output.
Here the same tensors belong to `nn.Linear` and `nn.LayerNorm` children, which upstream's own loops
call as before.
"""

from collections.abc import Iterable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from tts_compress.errors import ModelError
from tts_compress.models.checkout import Checkout

_CAPACITY = 256  # steps that a cache has room for before it grows; ten seconds of speech

_NAMES = {
    "qkv": "self_attn.in_proj_",
    "out": "self_attn.out_proj.",
    "up": "linear1.",
    "down": "linear2.",
    "norm1": "norm1.",
    "norm2": "norm2.",
}
"""Prefixes of `weight` and `bias` in upstream's encoder layers, by a block's children."""


class KeyValues(list[Tensor]):
    """Keys or values of all blocks, with room for more: no step copies those before it.

    Upstream's loops pass them back at each step, and where some texts of a batch have ended they
    replace each tensor by the rows that go on: `[batch, room, heads, width]`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # steps that are filled

    def add(self, index: int, values: Tensor) -> Tensor:
        """Append a block's values `[batch, steps, heads, width]` and return all that it has."""
        end = self.length + values.shape[1]
        if index == len(self):
            self.append(_with_room(values[:, :0], end))
        elif self[index].shape[1] < end:
            self[index] = _with_room(self[index][:, : self.length], end)
        held = self[index]
        held[:, self.length : end] = values
        return held[:, :end]


class T2SBlock(nn.Module):
    """Attention and a feed-forward network, with the tensors of upstream's encoder layer."""

    def __init__(self, layer: Any, heads: int) -> None:
        super().__init__()
        self.heads = heads
        attention = layer.self_attn
        high, wide = attention.in_proj_weight.shape
        self.qkv = nn.Linear(wide, high, device="meta")
        self.qkv.weight, self.qkv.bias = attention.in_proj_weight, attention.in_proj_bias
        self.out = attention.out_proj
        self.norm1 = layer.norm1
        self.up, self.down = layer.linear1, layer.linear2
        self.norm2 = layer.norm2

    def forward(
        self,
        x: Tensor,
        allowed: Tensor | None,
        index: int = 0,
        cache: tuple[KeyValues, KeyValues] | None = None,
    ) -> Tensor:
        """Return `[batch, steps, width]` for `x` of this shape.

        The steps attend to allowed positions, `[batch or 1, heads or 1, steps, all]`, or to all.
        Keys and values are added to those of this block in the cache; without one gradients flow.
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
    """The stack of blocks, with the methods that upstream's loops call."""

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
        torch_sdpa: bool = True,  # noqa: ARG002  upstream's choice of two equal kernels
    ) -> tuple[Tensor, KeyValues, KeyValues]:
        """Return outputs, keys and values of text and prompt, `[batch, positions, width]`."""
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
        torch_sdpa: bool = True,  # noqa: ARG002  upstream's choice of two equal kernels
    ) -> tuple[Tensor, KeyValues, KeyValues]:
        """Return outputs, keys and values of one more token of each text, `[batch, 1, width]`."""
        # All heads have the same mask, and a text that is alone in its batch has no padding to
        # hide: attention without a mask is the faster one.
        padded = None if attn_mask is None else attn_mask[:, :1]
        allowed = None if padded is None or not padded.any() else ~padded
        outputs = self(x, allowed, (k_cache, v_cache))
        k_cache.length = v_cache.length = k_cache.length + x.shape[1]
        return outputs, k_cache, v_cache


class ResidualBlock(nn.Module):
    """Upstream's `ResBlock1`, bit by bit, without its new tensor at every step.

    Beside integer convolutions those copies take much of the time.
    """

    def __init__(self, block: Any, slope: float) -> None:
        super().__init__()
        self.convs1: nn.ModuleList = block.convs1
        self.convs2: nn.ModuleList = block.convs2
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        """Return `[batch, channels, time]` for `x` of this shape, which stays as it is."""
        for first, second in zip(self.convs1, self.convs2, strict=True):
            inner = first(F.leaky_relu(x, self.slope))
            # Nothing else refers to the output of a convolution.
            inner = second(F.leaky_relu(inner, self.slope, inplace=True))
            x = inner.add_(x)
        return x


class _PassOn(nn.Module):
    """Replaces an unused layer of the text encoder."""

    def forward(self, states: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        return (states,)


def replace_modules(checkout: Checkout, root: Any) -> None:
    """Replace below a root what cannot be compressed, and remove what is not used, in place."""
    open_decoder(root.t2s)
    open_residuals(checkout, root)
    # Upstream takes the states before the last two layers.
    layers = root.bert.bert.encoder.layer
    for index in range(max(len(layers) - 2, 0), len(layers)):
        layers[index] = _PassOn()
    root.bert.cls = nn.Identity()


def open_decoder(decoder: Any) -> Any:
    """Replace the scripted transformer of a `Text2SemanticDecoder` in place, and return it.

    The encoder that the tensors come from is removed: only upstream's training calls it. Calling
    the decoder, which was its training step, scores given tokens from now on.
    """
    transformer = T2STransformer(T2SBlock(layer, decoder.num_head) for layer in decoder.h.layers)
    # Upstream's is a bare attribute, which would be found before a child of that name.
    decoder.__dict__.pop("t2s_transformer", None)
    decoder.t2s_transformer = transformer.train(decoder.training)
    del decoder.h
    decoder.forward = MethodType(_score, decoder)
    return decoder


def official_name(name: str) -> str:
    """Return the name that upstream's decoder has for a tensor of an opened one."""
    if not name.startswith("t2s_transformer.blocks."):
        return name
    *_, number, child, part = name.split(".")
    return f"h.layers.{number}.{_NAMES[child]}{part}"


def open_residuals(checkout: Checkout, root: nn.Module) -> None:
    """Replace upstream's residual blocks below a module by `ResidualBlock`, in place."""
    modules = checkout.load("module.modules")
    for holder in list(root.modules()):
        for name, child in list(holder.named_children()):
            if type(child) is modules.ResBlock1:
                block = ResidualBlock(child, modules.LRELU_SLOPE)
                setattr(holder, name, block.train(child.training))


def _score(decoder: Any, phones: Tensor, bert: Tensor, semantic: Tensor) -> Tensor:
    """Return the scores after the text and after each semantic token, `[batch, T + 1, V]`.

    Phonemes are `[batch, N]`, features of the text encoder `[batch, 1024, N]`, tokens `[batch, T]`,
    all of them the prompt's first.
    """
    text = decoder.ar_text_embedding(phones) + decoder.bert_proj(bert.transpose(1, 2))
    text = decoder.ar_text_position(text)
    sound = decoder.ar_audio_position(decoder.ar_audio_embedding(semantic))
    length = text.shape[1]
    # Text attends to all of the text, sound to what was before it.
    order = torch.arange(length + sound.shape[1], device=text.device).clamp(min=length - 1)
    allowed = order[None, :] <= order[:, None]
    hidden = decoder.t2s_transformer(torch.cat([text, sound], dim=1), allowed)
    scores: Tensor = decoder.ar_predict_layer(hidden[:, length - 1 :])
    return scores


def _with_room(held: Tensor, end: int) -> Tensor:
    """Return a tensor of more steps that begins with the held ones."""
    batch, steps, heads, width = held.shape
    longer = held.new_empty(batch, end + max(_CAPACITY, end // 2), heads, width)
    longer[:, :steps] = held
    return longer
