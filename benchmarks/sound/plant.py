"""The demo voice with damage planted into its graph."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tts_compress import compress
from tts_compress.config import demo_voice
from tts_compress.models import load
from tts_compress.models.base import TTSModel
from tts_compress.models.piper import PiperModel

Weights: TypeAlias = npt.NDArray[np.float64]

Change: TypeAlias = Callable[[str, Weights], Weights]
"""Returns other weights, given their name and values."""

_CLIPPED = 2.58778
"""Half of the largest input of the last upsampling over four texts."""


def _largest(name: str, weights: Weights) -> Weights:
    """Return the largest magnitude of each output channel, with axes of length 1."""
    channel = 1 if ".ups." in name else 0
    return np.asarray(
        np.abs(weights).max(
            axis=tuple(axis for axis in range(weights.ndim) if axis != channel), keepdims=True
        )
    )


def _rounded(bits: int, share: float = 1.0) -> Change:
    """Round to symmetric integers per output channel, whose range is a share of the weights'."""

    def change(name: str, weights: Weights) -> Weights:
        most = 2 ** (bits - 1) - 1
        step = share * _largest(name, weights) / most
        return np.asarray(
            np.clip(np.round(weights / np.where(step, step, 1.0)), -most, most) * step
        )

    return change


def _noisy(share: float) -> Change:
    """Add normal noise, by a share of the root mean square of each output channel."""
    random = np.random.default_rng(5)

    def change(name: str, weights: Weights) -> Weights:
        channel = 1 if ".ups." in name else 0
        axes = tuple(axis for axis in range(weights.ndim) if axis != channel)
        spread = np.sqrt(np.square(weights).mean(axis=axes, keepdims=True))
        return np.asarray(weights + share * spread * random.standard_normal(weights.shape))

    return change


def _weights(part: str, change: Change) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        for item in model.graph.initializer:
            if f".{part}." in item.name and item.name.endswith("weight") and len(item.dims) > 1:
                values = numpy_helper.to_array(item).astype(np.float64)
                changed = change(item.name, values).astype(np.float32)
                item.CopyFrom(numpy_helper.from_array(changed, item.name))

    return edit


def _without_bias(model: onnx.ModelProto) -> None:
    (item,) = (i for i in model.graph.initializer if i.name.endswith("resblocks.4.convs.1.bias"))
    item.CopyFrom(numpy_helper.from_array(np.zeros(tuple(item.dims), np.float32), item.name))


def _clipped_activations(model: onnx.ModelProto) -> None:
    graph = model.graph
    index, node = next(
        (index, node)
        for index, node in enumerate(graph.node)
        if any(name.endswith("dec.ups.2.weight") for name in node.input)
    )
    for name, limit in (("planted_low", -_CLIPPED), ("planted_high", _CLIPPED)):
        graph.initializer.append(numpy_helper.from_array(np.array(limit, np.float32), name))
    source, clipped = node.input[0], f"{node.input[0]}_planted"
    node.input[0] = clipped
    graph.node.insert(
        index, helper.make_node("Clip", [source, "planted_low", "planted_high"], [clipped])
    )


_EDITS: Mapping[str, Callable[[onnx.ModelProto], None]] = {
    "8-bit decoder weights": _weights("dec", _rounded(8)),
    "one bias of the decoder dropped": _without_bias,
    "2 % noise on decoder weights": _weights("dec", _noisy(0.02)),
    "6-bit decoder weights": _weights("dec", _rounded(6)),
    "5 % noise on decoder weights": _weights("dec", _noisy(0.05)),
    "5-bit decoder weights": _weights("dec", _rounded(5)),
    "last upsampling: range of weights halved": _weights("dec.ups.2", _rounded(8, 0.5)),
    "last upsampling: range of activations halved": _clipped_activations,
    "4-bit decoder weights": _weights("dec", _rounded(4)),
    "decoder: range of weights halved": _weights("dec", _rounded(8, 0.5)),
    "5-bit flow weights": _weights("flow", _rounded(5)),
    "4-bit flow weights": _weights("flow", _rounded(4)),
    "4-bit text encoder weights": _weights("enc_p", _rounded(4)),
}

_SCHEMES = ("fp16", "int8")

NAMES = (*_SCHEMES, *_EDITS)
"""Candidates: our own schemes first, then damage."""


def plant(name: str) -> TTSModel:
    """Return the demo voice as a candidate of `NAMES`."""
    voice = load("demo")
    if name in _SCHEMES:
        return compress(voice, name, quality="fast" if name == "int8" else None)
    assert isinstance(voice, PiperModel), "the demo is a Piper voice"
    graph = voice.graph()
    _EDITS[name](graph)
    return PiperModel(demo_voice(), spec=name, held=graph)
