"""Equalised graphs compute the same; where that cannot be proven, nothing is touched."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graphs import make_body, make_model, make_node, run_model
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.quantize.equalize import equalize, find_groups


def _same(output: str, source: str, taps: int, dilation: int = 1) -> onnx.NodeProto:
    """Return a convolution with weight and bias named by its output that keeps the length."""
    reach = dilation * (taps - 1) // 2
    inputs = f"{source} {output}.w {output}.b"
    return make_node("Conv", inputs, output, pads=[reach, reach], dilations=[dilation])


def _build(
    nodes: list[onnx.NodeProto],
    weights: dict[str, tuple[int, ...]],
    outputs: tuple[str, ...] = ("y",),
) -> onnx.ModelProto:
    """Return a graph from x (B, 4, T); weights are seeded noise, their channels of all sizes."""
    generator = np.random.default_rng(0)
    tensors = {}
    for name, shape in weights.items():
        tensors[name] = generator.normal(size=shape)
        if len(shape) > 1:
            tensors[name] *= 10.0 ** generator.uniform(-2, 1, (shape[0], *[1] * (len(shape) - 1)))
    return make_model(nodes, {"x": ["b", 4, "t"]}, dict.fromkeys(outputs), tensors)


def _vocoder() -> onnx.ModelProto:
    """Return a HiFi-GAN in small: two upsamplings, residual blocks of two widths, averaged."""
    nodes = [
        _same("pre", "x", 7),
        make_node("LeakyRelu", "pre", "pre.act", alpha=0.1),
        make_node("ConvTranspose", "pre.act u1.w u1.b", "u1", strides=[4], pads=[2, 2]),
        *_block("a", "u1", 3),
        *_block("b", "u1", 5),
        make_node("Add", "a.out b.out", "sum"),
        make_node("Mul", "half sum", "mean"),
        make_node("LeakyRelu", "mean", "mean.act", alpha=0.1),
        make_node("ConvTranspose", "mean.act u2.w", "u2", strides=[3], pads=[1, 1]),
        *_block("c", "u2", 3),
        make_node("Relu", "c.out", "last.act"),
        _same("post", "last.act", 7),
        make_node("Tanh", "post", "y"),
    ]
    weights = {"pre.w": (8, 4, 7), "pre.b": (8,), "u1.w": (8, 6, 8), "u1.b": (6,)}
    for name, channels, taps in (("a", 6, 3), ("b", 6, 5), ("c", 5, 3)):
        for part in ("in", "mid"):
            weights |= {f"{name}.{part}.w": (channels, channels, taps)}
            weights |= {f"{name}.{part}.b": (channels,)}
    weights |= {"u2.w": (6, 5, 5), "post.w": (1, 5, 7), "post.b": (1,)}
    model = _build(nodes, weights)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0.5], np.float32), "half"))
    return model


def _block(name: str, source: str, taps: int) -> list[onnx.NodeProto]:
    """Return x + conv(act(conv(act(x))))."""
    return [
        make_node("LeakyRelu", source, f"{name}.act", alpha=0.1),
        _same(f"{name}.in", f"{name}.act", taps, dilation=2),
        make_node("LeakyRelu", f"{name}.in", f"{name}.mid.act", alpha=0.1),
        _same(f"{name}.mid", f"{name}.mid.act", taps),
        make_node("Add", f"{name}.mid {source}", f"{name}.out"),
    ]


def _run(model: onnx.ModelProto, length: int, *wanted: str) -> list[Any]:
    x = np.random.default_rng(length).normal(size=(2, 4, length)).astype(np.float32)
    return run_model(model, {"x": x}, *wanted)


def _peaks(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the largest magnitude per channel of everything that operators with data make."""
    names = [node.output[0] for node in model.graph.node]
    seen = dict(zip(names, _run(model, 33, *names), strict=True))
    return {name: np.abs(v).max(axis=(0, 2)) for name, v in seen.items() if v.ndim == 3}


def _equalize(model: onnx.ModelProto, peaks: dict[str, Any]) -> tuple[onnx.ModelProto, int]:
    graph = Graph(copy_model(model))
    groups = equalize(graph, find_groups(graph), peaks)
    return graph.finish(), groups


def _weights(model: onnx.ModelProto) -> list[bytes]:
    return [tensor.raw_data for tensor in model.graph.initializer]


@pytest.mark.parametrize("length", [1, 2, 7, 13, 64])
def test_vocoder_computes_the_same(length: int) -> None:
    model = _vocoder()
    after, groups = _equalize(model, _peaks(model))
    assert groups == 6  # one around each upsampling, one in each block, one behind the first layer
    assert _weights(after) != _weights(model)
    (expected,), (found,) = _run(model, length, "post"), _run(after, length, "post")
    assert expected.shape == found.shape
    assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()


def test_channels_end_up_equally_loud() -> None:
    model = _vocoder()
    coded = [node.output[0] for node in model.graph.node if not node.output[0].endswith("act")]
    peaks = _peaks(model)
    after = _peaks(_equalize(model, {name: peaks[name] for name in coded})[0])

    def unevenness(tensor: str, found: dict[str, Any]) -> float:
        return float(found[tensor].max() / np.median(found[tensor]))

    for tensor in ("pre", "a.in", "b.in", "c.in"):
        assert unevenness(tensor, peaks) > 2
        assert unevenness(tensor, after) == pytest.approx(1, abs=1e-4)
    joined = ("u1", "a.out", "b.out", "sum")  # one compromise for all
    before = sum(unevenness(tensor, peaks) for tensor in joined)
    assert sum(unevenness(tensor, after) for tensor in joined) < 0.8 * before


def test_silent_channels_do_not_divide_by_zero() -> None:
    model = _vocoder()
    peaks = {name: np.zeros_like(peak) for name, peak in _peaks(model).items()}
    peaks["pre"][1:] = 1.0
    after, _ = _equalize(model, peaks)
    (expected,), (found,) = _run(model, 9), _run(after, 9)
    assert np.isfinite(found).all()
    assert np.allclose(expected, found, atol=1e-4)


def test_groups_without_a_rounded_tensor_are_left_alone() -> None:
    model = _vocoder()
    assert _equalize(model, {})[1] == 0
    peaks = _peaks(model)
    after, groups = _equalize(model, {"a.in": peaks["a.in"]})
    assert groups == 1
    changed = {
        node.output[0]
        for node in after.graph.node
        if any(name.endswith(".equalized") for name in node.input)
    }
    assert changed == {"a.in", "a.mid"}


_PAIR = {"a.w": (5, 4, 3), "a.b": (5,), "b.w": (3, 5, 3), "b.b": (3,)}
"""Weights of x -> a (5 channels) -> b (3 channels)."""


def _pair(*between: onnx.NodeProto, last: str = "a") -> list[onnx.NodeProto]:
    return [_same("a", "x", 3), *between, _same("b", last, 3), make_node("Tanh", "b", "y")]


@pytest.mark.parametrize("between", ["LeakyRelu a", "Div a number", "Sub a a"])
def test_plain_pair_is_a_group(between: str) -> None:
    """The cases below differ from this one by one thing each."""
    operator, inputs = between.split(" ", 1)
    model = _build(_pair(make_node(operator, inputs, "h"), last="h"), _PAIR | {"number": (1,)})
    (group,) = find_groups(Graph(model))
    assert group.tensors == ("a", "h")
    assert [node.output[0] for node in group.producers] == ["a"]
    assert [node.output[0] for node in group.consumers] == ["b"]


def _inner(operator: str, source: str) -> onnx.NodeProto:
    """Return an If that reads a tensor inside its branches only."""
    body = make_body([make_node(operator, source, "inner")], {}, {"inner": None})
    return make_node("If", "yes", "chosen", then_branch=body, else_branch=body)


_MORE = {"c.w": (5, 4, 3), "c.b": (5,), "one.w": (1, 4, 3), "one.b": (1,), "vector": (1, 5, 1)}


_REFUSED: dict[str, tuple[list[onnx.NodeProto], tuple[str, ...]]] = {
    "tanh between": (_pair(make_node("Tanh", "a", "h"), last="h"), ("y",)),
    "product of two": (_pair(_same("c", "x", 3), make_node("Mul", "a c", "h"), last="h"), ("y",)),
    "square": (_pair(make_node("Mul", "a a", "h"), last="h"), ("y",)),
    "power": (_pair(make_node("Pow", "a number", "h"), last="h"), ("y",)),
    "reciprocal": (_pair(make_node("Div", "number a", "h"), last="h"), ("y",)),
    "vector added": (_pair(make_node("Add", "a vector", "h"), last="h"), ("y",)),
    "times a vector": (_pair(make_node("Mul", "a vector", "h"), last="h"), ("y",)),
    "sum that broadcasts": (
        _pair(_same("one", "x", 3), make_node("Add", "a one", "h"), last="h"),
        ("y",),
    ),
    "slice": (_pair(make_node("Slice", "a from to axis", "h"), last="h"), ("y",)),
    "concat": (
        _pair(make_node("Slice", "x from to axis", "s"), make_node("Concat", "a s", "h", axis=1)),
        ("y", "h"),
    ),
    "softmax reads too": ([*_pair(), make_node("Softmax", "a", "z", axis=1)], ("y", "z")),
    "output of the graph": (_pair(), ("y", "a")),
    "input of the graph added": (
        [make_node("Add", "x x", "h"), _same("c", "h", 3), make_node("Tanh", "c", "y")],
        ("y",),
    ),
    "read in a branch": ([*_pair(), _inner("Exp", "a")], ("y", "chosen")),
    "computed weight": (
        [
            make_node("Neg", "b.w", "w"),
            _same("a", "x", 3),
            make_node("Conv", "a w", "b"),
            make_node("Tanh", "b", "y"),
        ],
        ("y",),
    ),
    "computed bias": (
        [
            make_node("Neg", "a.b", "bias"),
            make_node("Conv", "x a.w bias", "a"),
            _same("b", "a", 3),
            make_node("Tanh", "b", "y"),
        ],
        ("y",),
    ),
    "shared weight": (
        [*_pair(), make_node("Conv", "x a.w a.b", "c"), make_node("Tanh", "c", "z")],
        ("y", "z"),
    ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_what_cannot_be_proven_is_refused(case: str) -> None:
    nodes, outputs = _REFUSED[case]
    model = _build(nodes, _PAIR | _MORE, outputs)
    numbers = {"from": [0], "to": [5], "axis": [1]}
    constants = {name: np.array(value, np.int64) for name, value in numbers.items()}
    constants |= {"number": np.array(2, np.float32), "yes": np.array(True)}
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    after, groups = _equalize(model, _peaks(model))
    assert groups == 0
    assert not any(tensor.name.endswith(".equalized") for tensor in after.graph.initializer)
    for expected, found in zip(_run(model, 11), _run(after, 11), strict=True):
        assert np.array_equal(expected, found)


@pytest.mark.parametrize("which", ["a", "b"])
def test_grouped_convolutions_are_refused(which: str) -> None:
    shapes = {"a.w": (4, 4, 3), "a.b": (4,), "b.w": (4, 4, 3), "b.b": (4,)}
    shapes[f"{which}.w"] = (4, 2, 3)
    nodes = _pair()
    node = next(node for node in nodes if node.output[0] == which)
    node.attribute.append(helper.make_attribute("group", 2))
    assert _equalize(model := _build(nodes, shapes), _peaks(model))[1] == 0
