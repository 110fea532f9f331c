"""Frames taken by number, where a graph multiplies by a matrix that holds a one for each frame.

VITS repeats what its encoder returns by such a matrix of frames and tokens: it grows with the
square of the utterance, and several are there at once. Numbers of tokens, one for each frame, give
the same frames.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from tts_compress.onnx.graph import Graph, copy_model, with_outputs
from tts_compress.onnx.precision import rounded_durations
from tts_compress.onnx.session import Feeds, open_session, run_session


def gather_frames(model: onnx.ModelProto, calls: Sequence[Feeds], spec: str) -> onnx.ModelProto:
    """Return a model, which is changed, that takes frames by number where calls prove it equal.

    Args:
        model: The graph.
        calls: Inputs of a few calls.
        spec: Its name in messages.
    """
    rounded = rounded_durations(model)
    graph = Graph(model)
    products = [node for node in graph.nodes if node.op_type == "MatMul"]
    paths = dict.fromkeys(node.input[0] for node in products if graph.producer(node.input[0]))
    if len(rounded) != 1 or not paths:
        return model
    durations = rounded[0].output[0]
    watched = with_outputs(copy_model(model), [durations, *paths])
    session = open_session(watched, spec, briefly=True)
    for call in calls:
        counts, *values = run_session(session, call, spec)
        repeated = np.repeat(np.arange(counts.size), counts.reshape(-1).astype(int))
        frames = np.eye(counts.size, dtype=np.float32)[repeated]
        pairs = zip([*paths], values, strict=True)
        paths = {name: None for name, path in pairs if np.array_equal(path, frames[None])}
        if not paths:
            return model
        remaining = with_outputs(copy_model(watched), [durations, *paths])
        session = open_session(remaining, spec, briefly=True)
    numbers = _numbers(graph, durations)
    for node in products:
        if node.input[0] in paths:
            graph.remove(node)
            graph.insert("Gather", [node.input[1], numbers], node.output[0], axis=1)
    return graph.finish()


def _numbers(graph: Graph, durations: str) -> str:
    """Return a tensor [T] with the number of each frame's token, given (…, N) frames of tokens."""
    graph.require_opset("", 16)  # the first version that adds up what is scattered
    stem = f"{durations}.numbers"
    zero, single, last, end = (
        graph.add_bounds(stem, n)[0] for n in (0, 1, -1, np.iinfo(np.int64).max)
    )
    first = graph.add_constant(stem, np.array(0, np.int64))
    flat = graph.make("Reshape", [durations, last], stem)
    whole = graph.make("Cast", [flat], stem, to=onnx.TensorProto.INT64)
    ends = graph.make("CumSum", [whole, first], stem)
    begins = graph.make("Slice", [ends, zero, last], stem)
    length = graph.make("Slice", [ends, last, end], stem)
    more = graph.make("Add", [length, single], stem)
    value = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [0])
    zeros = graph.make("ConstantOfShape", [more], stem, value=value)
    ones = graph.make("Expand", [single, graph.make("Shape", [begins], stem)], stem)
    marks = graph.make("ScatterElements", [zeros, begins, ones], stem, reduction="add")
    counted = graph.make("CumSum", [marks, first], stem)
    return graph.make("Slice", [counted, zero, length], stem)
