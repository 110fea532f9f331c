"""A graph, and graphs that are changed."""

import io
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.fuzz.mutate import Kind, mutate_graph
from tests.graphs import make_model, make_node
from tts_compress.compression import compress
from tts_compress.models import open_model
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

_SCHEMES = ("int8-weight-only", "int8-dynamic", "fp16", "int8", "int4-weight-only")


@cache
def bare_graph() -> onnx.ModelProto:
    """Return a small graph with convolutions, a product, and a branch of shapes."""
    generator = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return generator.normal(size=shape).astype(np.float32)

    nodes = [
        make_node("Conv", "x a.weight a.bias", "a", pads=[1, 1]),
        make_node("LeakyRelu", "a", "b", alpha=0.1),
        make_node("ConvTranspose", "b c.weight", "c", strides=[2], pads=[1, 1]),
        make_node("Transpose", "c", "d", perm=[0, 2, 1]),
        make_node("MatMul", "d e.weight", "e"),
        make_node("Tanh", "e", "y"),
    ]
    weights = {"a.weight": weight(64, 32, 3), "a.bias": weight(64)}
    weights |= {"c.weight": weight(64, 64, 4), "e.weight": weight(64, 64)}
    return make_model(nodes, {"x": [1, 32, "time"]}, {"y": [1, "frames", 64]}, weights, opset=17)


def untrained_schemes(family: str) -> tuple[str, ...]:
    """Return every scheme of a family that trains nothing."""
    return tuple(name for name in schemes_of(family) if not find_scheme(name).trained)


def compress_file(folder: Path, scheme: str) -> Path:
    """Return `graph.onnx` compressed, calibrated on `calls.npz` where the scheme asks for it."""
    needs = find_recipe("onnx", scheme).calibration is not None
    calls = str(folder / "calls.npz") if needs else None
    return compress(f"onnx:{folder / 'graph.onnx'}", scheme, calibration=calls).save(folder / "out")


@cache
def calls() -> bytes:
    """Return the `.npz` of two calls of the bare graph."""
    file, generator = io.BytesIO(), np.random.default_rng(0)
    arrays = {f"{n}/x": generator.normal(size=(1, 32, 8)).astype(np.float32) for n in range(2)}
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _onnx(folder: Path, dice: random.Random) -> Iterator[None]:
    (folder / "calls.npz").write_bytes(calls())
    (folder / "graph.onnx").write_bytes(mutate_graph(bare_graph(), dice))
    yield
    model: Any = open_model(f"onnx:{folder / 'graph.onnx'}")
    model.describe()
    model.components()
    compress_file(folder, dice.choice(_SCHEMES))


KINDS = {"onnx": Kind(22, _onnx)}
