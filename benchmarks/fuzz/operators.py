"""Small graphs of any opset and layer, compressed and run beside their originals."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.fuzz.compare import bits_of, check_agreement, ratio_db
from benchmarks.fuzz.graphs import compress_file, untrained_schemes
from benchmarks.fuzz.mutate import Kind
from tests.graphs import make_model, make_node
from tts_compress.models import open_model
from tts_compress.onnx.session import open_session

_OPSETS = range(7, 23)


class _Builder:
    """Collects the operators of a chain on `[1, channels, time]`, and their weights."""

    def __init__(self, opset: int, dice: random.Random) -> None:
        self.opset, self.dice = opset, dice
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self.channels = dice.choice((3, 16, 32, 32, 48))
        self._random = np.random.default_rng(dice.randrange(1 << 30))

    def put(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator; return its output."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(make_node(operator, " ".join(inputs), name, **attributes))
        return name

    def hold(self, values: Any) -> str:
        """Add a constant as a weight or as an operator."""
        name = f"w{len(self.weights) + len(self.nodes)}"
        if self.dice.random() < 0.15:
            self.nodes.append(
                make_node("Constant", "", name, value=numpy_helper.from_array(values))
            )
        else:
            self.weights[name] = values
        return name

    def weight(self, *shape: int, inputs: int) -> str:
        """Add random numbers that keep the size of what they multiply, or make it small."""
        scale = self.dice.choice((1,) * 9 + (1e-4,)) / np.sqrt(inputs)
        return self.hold((scale * self._random.standard_normal(shape)).astype(np.float32))

    def shape(self, *sizes: int) -> str:
        """Add the shape of a `Reshape`."""
        return self.hold(np.array(sizes, np.int64))

    def turned(self, x: str) -> str:
        """Exchange channels and time."""
        return self.put("Transpose", x, perm=[0, 2, 1])


def _convolve(b: _Builder, x: str) -> str:
    group = b.dice.choice((1, 1, b.channels))
    channels = group * b.dice.choice((1, 2)) if group > 1 else b.dice.choice((1, 16, 32, 32))
    kernel, dilation = b.dice.choice((1, 3, 5, 11)), b.dice.choice((1, 1, 2))
    inner = b.channels // group
    flat = b.dice.random() < 0.3
    inputs = [b.weight(channels, inner, kernel, *[1] * flat, inputs=inner * kernel)]
    if b.dice.random() < 0.7:
        inputs.append(b.weight(channels, inputs=1))
    span = dilation * (kernel - 1)
    pads = [span // 2, *[0] * flat, span - span // 2, *[0] * flat]
    more: dict[str, Any] = {"pads": pads, "dilations": [dilation, *[1] * flat]}
    if b.dice.random() < 0.2 and dilation == 1:
        more = {"auto_pad": b.dice.choice(("SAME_UPPER", "SAME_LOWER"))}
    x = b.put("Reshape", x, b.shape(1, b.channels, -1, 1)) if flat else x
    x = b.put("Conv", x, *inputs, group=group, **more)
    b.channels = channels
    return b.put("Reshape", x, b.shape(1, channels, -1)) if flat else x


def _upsample(b: _Builder, x: str) -> str:
    channels, stride = b.dice.choice((8, 16, 32)), b.dice.choice((1, 2, 3))
    weight = b.weight(b.channels, channels, 2 * stride, inputs=2 * b.channels)
    b.channels = channels
    return b.put("ConvTranspose", x, weight, strides=[stride])


def _multiply(b: _Builder, x: str) -> str:
    channels, x = b.dice.choice((1, 16, 32, 32)), b.turned(x)
    if b.dice.random() < 0.5:
        x = b.put("MatMul", x, b.weight(b.channels, channels, inputs=b.channels))
    else:
        turned = b.dice.choice((0, 1))
        shape = (channels, b.channels) if turned else (b.channels, channels)
        x = b.put("Reshape", x, b.shape(-1, b.channels))
        inputs = [b.weight(*shape, inputs=b.channels), b.weight(channels, inputs=1)]
        x = b.put("Gemm", x, *inputs, transB=turned, alpha=b.dice.choice((1.0, 0.5)))
        x = b.put("Reshape", x, b.shape(1, -1, channels))
    b.channels = channels
    return b.turned(x)


def _remember(b: _Builder, x: str) -> str:
    operator, gates = b.dice.choice((("LSTM", 4), ("GRU", 3)))
    hidden, both = b.dice.choice((8, 16)), b.dice.choice((1, 2))
    inputs = [
        b.weight(both, gates * hidden, b.channels, inputs=b.channels),
        b.weight(both, gates * hidden, hidden, inputs=hidden),
        b.weight(both, 2 * gates * hidden, inputs=hidden),
    ]
    direction = "bidirectional" if both == 2 else b.dice.choice(("forward", "reverse"))
    x = b.put("Transpose", x, perm=[2, 0, 1])
    x = b.put(operator, x, *inputs, hidden_size=hidden, direction=direction)
    b.channels = both * hidden
    x = b.put("Transpose", x, perm=[2, 1, 3, 0])
    return b.put("Reshape", x, b.shape(1, b.channels, -1))


def _normalize(b: _Builder, x: str) -> str:
    scale, shift = (b.weight(b.channels, inputs=1) for _ in range(2))
    if b.opset >= 17 and b.dice.random() < 0.5:
        return b.turned(b.put("LayerNormalization", b.turned(x), scale, shift))
    if b.dice.random() < 0.5:
        return b.put("InstanceNormalization", x, scale, shift)
    ones = [b.hold(np.full(b.channels, value, np.float32)) for value in (0, 1)]
    return b.put("BatchNormalization", x, scale, shift, *ones)


def _attend(b: _Builder, x: str) -> str:
    """Mix all times; what is hidden would be minus infinity."""
    gain = b.hold(np.array(1 / b.channels, np.float32))
    scores = b.put("Mul", b.put("MatMul", b.turned(x), x), gain)
    if b.opset >= 9:
        hidden = b.put("Less", scores, b.hold(np.array(-1e30, np.float32)))
        scores = b.put("Where", hidden, b.hold(np.array(-np.inf, np.float32)), scores)
    return b.put("MatMul", x, b.turned(b.put("Softmax", scores, axis=2)))


def _activate(b: _Builder, x: str) -> str:
    return b.put(b.dice.choice(("Relu", "LeakyRelu", "Tanh", "Sigmoid")), x)


_Layer = Callable[[_Builder, str], str]
_WEIGHTED: tuple[_Layer, ...] = (_convolve, _convolve, _upsample, _multiply, _multiply, _remember)
_LAYERS: tuple[_Layer, ...] = (*_WEIGHTED, _normalize, _attend, _activate)


def _opset(folder: Path, dice: random.Random) -> Iterator[None]:
    builder = _Builder(dice.choice(_OPSETS), dice)
    channels, name = builder.channels, "x"
    layers = [dice.choice(_WEIGHTED), *dice.choices(_LAYERS, k=dice.choice((0, 1, 2, 3)))]
    for layer in layers:
        name = layer(builder, name)
    shapes = {"x": [1, channels, "T"]}, {name: [1, builder.channels, "N"]}
    model = make_model(builder.nodes, *shapes, builder.weights, opset=builder.opset)
    onnx.save(model, folder / "graph.onnx")
    numbers, time = np.random.default_rng(dice.randrange(1 << 30)), dice.choice((1, 4, 20))
    calls = numbers.standard_normal((2, 1, channels, time), np.float32)
    np.savez(folder / "calls.npz", **{"0/x": calls[0], "1/x": calls[1]})
    yield
    source, scheme = folder / "graph.onnx", dice.choice(untrained_schemes("onnx"))
    feeds = {"x": calls[0]}
    expected = _run(source, feeds)
    again: Any = open_model(compress_file(folder, scheme))
    actual = _run(again.files().weights[0], feeds)
    check_agreement(expected, actual, scheme, lambda: _magnified_db(source, feeds, scheme))
    again.describe()
    again.components()


def _magnified_db(source: Path, feeds: dict[str, Any], scheme: str) -> float:
    """Return how far the original moves where its weights and inputs do, by a scheme's rounding."""
    model, random = onnx.load(source), np.random.default_rng(0)

    def moved(values: Any) -> Any:
        largest = np.abs(values).max(initial=0) * 2.0 ** -bits_of(scheme)
        return (values + random.uniform(-largest, largest, values.shape)).astype(np.float32)

    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and np.isfinite(values).all():
            tensor.CopyFrom(numpy_helper.from_array(moved(values), tensor.name))
    path = source.with_name("moved.onnx")
    onnx.save(model, path)
    return ratio_db(_run(source, feeds)[0], _run(path, {"x": moved(feeds["x"])})[0])


def _run(path: Path, feeds: dict[str, Any]) -> list[Any]:
    return list(open_session(path, path.name, threads=1).run(None, feeds))


KINDS = {"opset": Kind(10, _opset)}
