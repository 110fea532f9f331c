"""Other ways to compress voices in ONNX, by the tools' own public calls."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)

from tts_compress.models import load, open_model
from tts_compress.models.base import GraphModel, OnnxGraph
from tts_compress.models.feeds import graph_inputs, open_feeds
from tts_compress.onnx.session import Feeds
from tts_compress.recipes.recipe import read_calibration_set

PeerCall = Callable[[Path, Path, Iterator[Feeds]], None]
"""Writes a compressed graph; the calls are inputs that ranges may be observed on."""

_UTTERANCES = 8
"""The stock calibrator watches every activation of the graph; more costs minutes."""


def quantize_observed(graph: Path, output: Path, calls: Iterator[Feeds], **settings: Any) -> None:
    """Quantize by onnxruntime's `quantize_static`, prepared as it advises."""
    with TemporaryDirectory() as temporary:
        prepared = str(Path(temporary) / "prepared.onnx")
        # Symbolic shape inference fails on VITS.
        quant_pre_process(str(graph), prepared, skip_symbolic_shape=True)
        quantize_static(prepared, str(output), _Reader(calls), **settings)


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # no type information is published
    """The inputs of a few calls."""

    def __init__(self, calls: Iterator[Feeds]) -> None:
        self._calls = calls

    def get_next(self) -> Feeds | None:
        """Return the next call's inputs; None after the last."""
        return next(self._calls, None)


def _dynamic(graph: Path, output: Path, _: Iterator[Feeds], **settings: Any) -> None:
    quantize_dynamic(str(graph), str(output), **settings)


def _half(graph: Path, output: Path, _: Iterator[Feeds]) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = convert_float_to_float16(
        onnx.load(graph), keep_io_types=True, op_block_list=["RandomNormalLike", "Range"]
    )
    onnx.save(half, output)


_STATIC = partial(
    quantize_observed,
    quant_format=QuantFormat.QDQ,
    per_channel=True,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    calibrate_method=CalibrationMethod.MinMax,
)
"""As onnxruntime's documentation advises for processors with VNNI."""

PEER_CALLS: dict[str, PeerCall] = {
    # As sherpa-onnx does for its published INT8 voices.
    "dynamic-quint8": partial(_dynamic, weight_type=QuantType.QUInt8),
    "dynamic-default": _dynamic,
    "static": _STATIC,
    # Convolutions only: durations and quality suffer less.
    "static-conv": partial(_STATIC, op_types_to_quantize=["Conv"]),
    # As sherpa-onnx does for its published FP16 voices.
    "fp16": _half,
}


def make_peer(name: str, voice: Path, folder: Path, calibration: Path | None = None) -> None:
    """Write every graph of a voice, or a bare one, compressed, and the files beside them."""
    model = load(voice) if calibration is None else open_model(f"onnx:{voice}")
    assert isinstance(model, OnnxGraph)
    model.save(folder)
    for part, graph in model.parts.items():
        [output] = folder.rglob(graph.path.name)
        output.unlink()
        PEER_CALLS[name](graph.path, output, _plain_feeds(model, part, calibration))


def _plain_feeds(model: OnnxGraph, part: str, calibration: Path | None) -> Iterator[Feeds]:
    graph = model.graph(part)
    if calibration is not None:
        yield from open_feeds(calibration, graph_inputs(graph)).read(_UTTERANCES)
        return
    assert isinstance(model, GraphModel), "a voice speaks what it is calibrated on"
    names = {value.name for value in graph.graph.input}
    texts = read_calibration_set("en").texts[:_UTTERANCES]
    for feeds in model.calibration_calls(texts, seed=0, part=part):
        yield {name: value for name, value in feeds.items() if name in names}
