"""Sine sources in half precision: what is summed up over time keeps FP32."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node
from tests.rules import make_recipe
from tts_compress.compression import compress
from tts_compress.models import open_model
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.precision import phase_outputs
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.recipes.recipe import Recipe, find_recipe

_SAMPLES = 24_000


def _source(*, predicted: bool = True) -> onnx.ModelProto:
    """Return pitch [1, 1, T] in Hz → sound: a sine of the summed frequency, and a convolution.

    Behind the convolution stands another sine, of nothing that was summed, as in a Snake. The pitch
    goes through a layer where it is `predicted`.
    """
    generator = np.random.default_rng(0)
    weights = {
        "net.pitch.weight": np.full((1, 1, 1), 1.0),
        "net.conv.weight": generator.normal(0, 0.5, (8, 1, 7)),
        "net.post.weight": generator.normal(0, 0.5, (1, 8, 7)),
        "rate": np.array(1 / _SAMPLES),
        "circle": np.array(2 * np.pi),
        "alpha": np.array(1.5),
    }
    pitch = [make_node("Conv", "f0 net.pitch.weight", "pitch", "/net/pitch/Conv")]
    nodes = [
        *(pitch if predicted else ()),
        helper.make_node("Mul", ["pitch" if predicted else "f0", "rate"], ["turns"], "/net/Mul"),
        make_node("CumSum", "turns axis", "summed", "/net/CumSum"),
        make_node("Mul", "summed circle", "phase", "/net/Mul_1"),
        make_node("Sin", "phase", "sine", "/net/Sin"),
        make_node("Conv", "sine net.conv.weight", "hidden", "/net/conv/Conv", pads=[3, 3]),
        make_node("Mul", "hidden alpha", "scaled", "/net/Mul_2"),
        make_node("Sin", "scaled", "snake", "/net/Sin_1"),
        make_node("Conv", "snake net.post.weight", "audio", "/net/post/Conv", pads=[3, 3]),
    ]
    ends = [1, 1, "T"]
    constants = weights | {"axis": np.array(2)}
    return make_model(nodes, {"f0": ends}, {"audio": ends}, constants, opset=17)


def test_phases_reach_from_sines_over_sums_to_layers() -> None:
    model = _source()
    model.graph.node.append(make_node("Sin", "f0", "of_an_input"))
    assert phase_outputs(Graph(model)) == {"phase", "summed", "turns"}


def _angle() -> onnx.ModelProto:
    """Return sound [1, 1, T] → angles of two parts of its spectrum, as Kokoro has them."""
    generator = np.random.default_rng(0)
    names = ("net.imaginary.weight", "net.real.weight")
    kernels = {name: generator.normal(0, 0.5, (4, 1, 7)) for name in names}
    nodes = [
        make_node("Conv", f"x {names[0]}", "a", "/net/imaginary/Conv", pads=[3, 3]),
        make_node("Conv", f"x {names[1]}", "b", "/net/real/Conv", pads=[3, 3]),
        make_node("Div", "a b", "ratio", "/net/Div"),
        make_node("Atan", "ratio", "angle", "/net/Atan"),
    ]
    return make_model(nodes, {"x": [1, 1, "T"]}, {"angle": [1, 4, "T"]}, kernels, opset=17)


def test_weights_that_angles_are_made_by_may_be_integers() -> None:
    assert {decision.weights for decision in decide(_angle(), make_recipe({}))} == {"int8"}


def _halved() -> Recipe:
    """Return the recipe of half precision without its exception of small layers."""
    recipe = find_recipe("onnx", "fp16")
    rules = [rule.model_copy(update={"min_weights": 1}) for rule in recipe.component]
    return recipe.model_copy(update={"component": tuple(rules)})


def test_angles_of_quiet_sounds_are_numbers_in_half_precision(tmp_path: Path) -> None:
    """Below 6e-8 half precision has only zero, and zero by zero is no number."""
    path = tmp_path / "angle.onnx"
    model = _angle()
    # Another layer, because a graph without any in half precision is refused.
    extra = np.random.default_rng(1).normal(0, 0.5, (1, 1, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(extra, "net.extra.weight"))
    model.graph.node.append(
        make_node("Conv", "x net.extra.weight", "y", "/net/extra/Conv", pads=[1, 1])
    )
    value: list[str | int | None] = [1, 1, "T"]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, value))
    onnx.save(model, path)
    assert phase_outputs(Graph(model)) == {"ratio", "a", "b"}
    small = compress(open_model(f"onnx:{path}"), "fp16", recipe=_halved()).save(tmp_path / "out")
    quiet = np.random.default_rng(2).normal(0, 1e-9, (1, 1, 50)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(file).run(["angle"], {"x": quiet})[0]
        for file in (path, small / path.name)
    )
    assert np.allclose(before, after, atol=1e-5)


def test_a_sine_source_survives_half_precision(tmp_path: Path) -> None:
    """Three seconds: phases of 2,500 radians, which half precision holds to two.

    A pitch that is rounded itself drifts, which nobody hears and this comparison would.
    """
    path = tmp_path / "source.onnx"
    onnx.save(_source(predicted=False), path)
    small = compress(open_model(f"onnx:{path}"), "fp16", recipe=_halved()).save(tmp_path / "out")
    pitch = np.linspace(110, 160, 3 * _SAMPLES, dtype=np.float32)[None, None]
    sounds = [
        onnxruntime.InferenceSession(file).run(None, {"f0": pitch})[0].astype(np.float64)
        for file in (path, small / path.name)
    ]
    noise = np.square(sounds[1] - sounds[0]).sum()
    assert 0 < noise < 1e-4 * np.square(sounds[0]).sum()
