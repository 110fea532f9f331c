"""The vocoder in FP32, compressed by this project, and by the stock calls of onnxruntime."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.peers import quantize_observed
from benchmarks.qat.contestants import Vocoder, calls, reference, runs
from benchmarks.qat.generator import load_generator
from benchmarks.vocoder.clips import Fold
from tts_compress.compression import compress
from tts_compress.models import open_model
from tts_compress.models.base import OnnxGraph

_FEW = 8
"""Clips that the stock calibrator, which keeps every activation of all of them, observes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The vocoder as published, and where files of contestants go."""

    graph: Path
    """As ONNX."""

    checkpoint: Path
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One vocoder."""

    name: str
    kind: Literal["fp32", "ours", "stock"]
    how: str
    """The call, for the report."""

    make: Callable[[Given, Fold], Vocoder]


def _int8(given: Given, fold: Fold) -> Vocoder:
    feeds = given.folder / "feeds.npz"
    np.savez(feeds, **{f"{call}/mel": clip.mel for call, clip in enumerate(fold.calibration)})
    graph = open_model(f"onnx:{given.graph}")
    small = compress(graph, "int8", calibration=feeds, quality="fast")
    assert isinstance(small, OnnxGraph)
    return runs(small.graph())


def _int8_torch(given: Given, _: Fold) -> Vocoder:
    return calls(compress(load_generator(given.checkpoint), "int8"))


def _static(given: Given, fold: Fold) -> Vocoder:
    return _observed(given, fold)


def _static_channels(given: Given, fold: Fold) -> Vocoder:
    return _observed(given, fold, per_channel=True, activation_type=QuantType.QUInt8)


def _observed(given: Given, fold: Fold, **settings: object) -> Vocoder:
    output = given.folder / "stock.onnx"
    feeds = ({"mel": clip.mel} for clip in fold.calibration[:_FEW])
    quantize_observed(given.graph, output, feeds, **settings)
    return reference(output)


def _dynamic(given: Given, _: Fold, **settings: object) -> Vocoder:
    output = given.folder / "stock.onnx"
    quantize_dynamic(str(given.graph), str(output), **settings)
    return reference(output)


def _dynamic_unsigned(given: Given, fold: Fold) -> Vocoder:
    return _dynamic(given, fold, weight_type=QuantType.QUInt8)


CONTESTANTS = (
    Contestant(
        name="fp32", kind="fp32", how="the ONNX graph", make=lambda given, _: reference(given.graph)
    ),
    Contestant(
        name="int8",
        kind="ours",
        how='`compress("vocoder.onnx", "int8", calibration=..., quality="fast")`',
        make=_int8,
    ),
    Contestant(
        name="int8-torch", kind="ours", how='`compress(module, "int8")`, in torch', make=_int8_torch
    ),
    Contestant(
        name="stock-dynamic", kind="stock", how="`quantize_dynamic` as it comes", make=_dynamic
    ),
    Contestant(
        name="stock-dynamic-quint8",
        kind="stock",
        how="`quantize_dynamic(weight_type=QUInt8)`",
        make=_dynamic_unsigned,
    ),
    Contestant(
        name="stock-static-per-channel",
        kind="stock",
        how="`quantize_static(per_channel=True, activation_type=QUInt8)`",
        make=_static_channels,
    ),
    Contestant(
        name="stock-static",
        kind="stock",
        how="`quantize_static` as it comes: QDQ, one scale a tensor, min-max",
        make=_static,
    ),
)
