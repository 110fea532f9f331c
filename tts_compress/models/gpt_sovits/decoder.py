"""Upstream's T2S decoder with its transformer opened, and what it finds probable."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from tts_compress.models.gpt_sovits.t2s import LAYER_NAMES, T2SBlock, T2STransformer

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["official_name", "open_decoder"]


def open_decoder(decoder: Any) -> nn.Module:
    """Put a `T2STransformer` in the place of a decoder's scripted one, in place; return it.

    The encoder that the tensors come from goes: only upstream's training calls it. Calling the
    decoder, which was its training step, scores given tokens from now on.

    Args:
        decoder: Upstream's `Text2SemanticDecoder`; parameters may be without memory (`meta`).
    """
    transformer = T2STransformer(T2SBlock(layer, decoder.num_head) for layer in decoder.h.layers)
    # Upstream's is a bare attribute, which would be found before a child of that name.
    decoder.__dict__.pop("t2s_transformer", None)
    decoder.t2s_transformer = transformer.train(decoder.training)
    del decoder.h
    decoder.forward = MethodType(_score, decoder)
    opened: nn.Module = decoder
    return opened


def official_name(name: str) -> str:
    """Return what upstream's checkpoints call a tensor of an opened decoder.

    Args:
        name: Below the decoder.
    """
    prefix, separator, rest = name.partition("t2s_transformer.blocks.")
    if separator and not prefix:
        number, _, part = rest.partition(".")
        return f"model.h.layers.{number}.{LAYER_NAMES[part]}"
    return f"model.{name}"


def _score(decoder: Any, phones: Tensor, bert: Tensor, semantic: Tensor) -> Tensor:
    """Return the scores from which tokens would be drawn, after each of the given ones.

    Args:
        decoder: An opened one.
        phones: `[batch, N]`, of the prompt and the text.
        bert: `[batch, 1024, N]`.
        semantic: `[batch, T]`, of the prompt and what was said.

    Returns:
        `[batch, T + 1, V]`; the first are those after the text alone.
    """
    text = decoder.ar_text_embedding(phones) + decoder.bert_proj(bert.transpose(1, 2))
    text = decoder.ar_text_position(text)
    sound = decoder.ar_audio_position(decoder.ar_audio_embedding(semantic))
    allowed = _allowed(text.shape[1], sound.shape[1]).to(text.device)
    hidden = decoder.t2s_transformer(torch.cat([text, sound], dim=1), allowed)
    scores: Tensor = decoder.ar_predict_layer(hidden[:, text.shape[1] - 1 :])
    return scores


def _allowed(text: int, sound: int) -> Tensor:
    """Return which positions each may look at: text all of the text, sound what was before it."""
    order = torch.arange(text + sound).clamp(min=text - 1)
    return order[None, :] <= order[:, None]
