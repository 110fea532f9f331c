"""Graphs whose convolutions run on codes, calibrated on one call."""

from collections.abc import Mapping
from typing import Any

import onnx

from tests.graphs import run_model
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer import emit_integer, observed_tensors


def emitted(
    model: onnx.ModelProto,
    convolutions: frozenset[str],
    feeds: Mapping[str, Any],
    **ranges: tuple[float, float],
) -> onnx.ModelProto:
    """Return a copy with convolutions on codes; ranges are those of a call where none are given."""
    names = [name for name in observed_tensors(model, convolutions) if name not in ranges]
    values = run_model(model, feeds, *names) if names else []
    seen = {n: (float(v.min()), float(v.max())) for n, v in zip(names, values, strict=True)}
    graph = Graph(copy_model(model))
    emit_integer(graph, convolutions, ranges | seen)
    return graph.model
