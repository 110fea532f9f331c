"""Graphs, and the arrays that one is called with."""

import io
import random
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.fuzz.mutate import mutate_bytes, mutate_graph
from tts_compress.compression import compress
from tts_compress.models import open_model
from tts_compress.models.feeds import graph_inputs, open_feeds
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

_SCHEMES = ("int8-weight-only", "int8-dynamic", "fp16", "int8", "int4-weight-only")

Value = tuple[str, int, list[Any]]
"""Name, element type and shape of an input or an output."""


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    weights: Sequence[onnx.TensorProto],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a graph as a model."""
    taken, returned = (
        [helper.make_tensor_value_info(*value) for value in part] for part in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "bare", taken, returned, weights)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@cache
def bare_graph() -> onnx.ModelProto:
    """Return a small graph with convolutions, a product, and a branch of shapes."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name)

    node, real = helper.make_node, TensorProto.FLOAT
    nodes = [
        node("Conv", ["x", "a.weight", "a.bias"], ["a"], "a", pads=[1, 1]),
        node("LeakyRelu", ["a"], ["b"], "b", alpha=0.1),
        node("ConvTranspose", ["b", "c.weight"], ["c"], "c", strides=[2], pads=[1, 1]),
        node("Transpose", ["c"], ["d"], "d", perm=[0, 2, 1]),
        node("MatMul", ["d", "e.weight"], ["e"], "e"),
        node("Tanh", ["e"], ["y"], "y"),
    ]
    weights = [weight("a.weight", 64, 32, 3), weight("a.bias", 64)]
    weights += [weight("c.weight", 64, 64, 4), weight("e.weight", 64, 64)]
    output = ("y", real, [1, "frames", 64])
    return make_model(nodes, [("x", real, [1, 32, "time"])], [output], weights)


def untrained_schemes(family: str) -> tuple[str, ...]:
    """Return every scheme of a family that trains nothing."""
    return tuple(name for name in schemes_of(family) if not find_scheme(name).trained)


def compress_file(folder: Path, scheme: str) -> Path:
    """Compress `graph.onnx`, calibrated on `calls.npz` where the scheme asks for it.

    Returns:
        The artifact.
    """
    needs = find_recipe("onnx", scheme).calibration is not None
    calls = str(folder / "calls.npz") if needs else None
    return compress(f"onnx:{folder / 'graph.onnx'}", scheme, calibration=calls).save(folder / "out")


@cache
def _calls() -> bytes:
    """Return the `.npz` of two calls of the bare graph."""
    file, generator = io.BytesIO(), np.random.default_rng(0)
    calls = {f"{n}/x": generator.normal(size=(1, 32, 8)).astype(np.float32) for n in range(2)}
    np.savez(file, **calls)  # type: ignore[arg-type]
    return file.getvalue()


def write_onnx(folder: Path, dice: random.Random) -> None:
    """Write a changed graph, and calls of the graph as it was."""
    (folder / "calls.npz").write_bytes(_calls())
    (folder / "graph.onnx").write_bytes(mutate_graph(bare_graph(), dice))


def write_npz(folder: Path, dice: random.Random) -> None:
    """Write the graph, and changed calls of it."""
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    content = _calls()
    if dice.random() < 0.6:  # a header that lies, in an archive that is whole
        header = [b"(1, 32, 8)", b"<f4", b"descr", b"False", b"\x93NUMPY\x01"]
        lies = [b"(1, 32, 1 << 60)", b"(1, 32, 99999999)", b"(-1, 32, 8)", b"()", b"(8,)", b"|O"]
        lies += [b"<f8", b"<i8", b"<U9", b"True", b"[" * 200, b"(1, 32, 16777216)"]
        array = np.ones((1, 32, 8), np.float32) * dice.choice((0, 1, np.nan, np.inf))
        npy = io.BytesIO()
        np.save(npy, array)
        lie = npy.getvalue().replace(dice.choice(header), dice.choice(lies))
        file = io.BytesIO()
        names = ["0/x.npy", "x", "0/y.npy", "999999999/x.npy", f"{'9' * 5_000}/x.npy"]
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(dice.choice(names[:1] * 4 + names), lie + b"\0" * 50_000)
        content = file.getvalue()
    else:
        content = mutate_bytes(content, dice)
    (folder / "calls.npz").write_bytes(content)


def compress_graph(folder: Path, dice: random.Random) -> object:
    """Compress the graph as a user's command does."""
    model: Any = open_model(f"onnx:{folder / 'graph.onnx'}")
    return model.describe(), list(model.components()), compress_file(folder, dice.choice(_SCHEMES))


def read_calls(folder: Path, dice: random.Random) -> object:
    """Read the calls, as calibration does."""
    if dice.random() < 0.1:
        return compress(f"onnx:{folder / 'graph.onnx'}", "int8", calibration=folder / "calls.npz")
    feeds = open_feeds(folder / "calls.npz", graph_inputs(bare_graph()))
    return sum(array.nbytes for call in feeds.read(4) for array in call.values())
