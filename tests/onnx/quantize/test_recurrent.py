"""LSTMs in integers: right against numpy, exact on every processor, and told where they are not."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tests.rules import make_recipe
from tts_compress.environment import describe_processor
from tts_compress.models.integers import count_integer_layers
from tts_compress.models.onnx_model import OnnxModel
from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums
from tts_compress.onnx.quantize.convert import Conversion, convert, convertible_graph
from tts_compress.onnx.quantize.decisions import Decision, decide
from tts_compress.recipes.recipe import Recipe, find_recipe

Real = npt.NDArray[np.float32]

_INPUTS, _UNITS = 24, 64
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _weights(
    operator: str, directions: int, seed: int = 0, sizes: tuple[int, int] = (_INPUTS, _UNITS)
) -> dict[str, Real]:
    generator, gates = np.random.default_rng(seed), _GATES[operator] * sizes[1]
    shapes = {
        "w": (directions, gates, sizes[0]),
        "r": (directions, gates, sizes[1]),
        "b": (directions, 2 * gates),
    }
    bound = sizes[1] ** -0.5
    return {
        f"{operator}_{name}": generator.uniform(-bound, bound, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def _recurrent(
    operator: str = "LSTM",
    direction: str = "forward",
    *,
    extras: tuple[str, ...] = (),
    sizes: tuple[int, int] = (_INPUTS, _UNITS),
    **attributes: Any,
) -> onnx.ModelProto:
    """Build a graph of one operator, x (T, B, inputs) in; `extras` are lengths, h, c, peepholes."""
    directions = 2 if direction == "bidirectional" else 1
    weights = _weights(operator, directions, sizes=sizes)
    if "p" in extras:
        values = np.random.default_rng(9).normal(0, 0.3, (directions, 3 * sizes[1]))
        weights["p"] = values.astype(np.float32)
    optional = [name if name in extras else "" for name in ("lengths", "h", "c", "p")]
    inputs = ["x", *list(weights)[:3], *(optional if operator == "LSTM" else [])]
    outputs = ["y", "y_h", "y_c"][: 3 if operator == "LSTM" else 2]
    node = make_node(
        operator,
        " ".join(name or "-" for name in inputs),
        " ".join(outputs),
        f"/net/{operator.lower()}/{operator}",
        direction=direction,
        hidden_size=sizes[1],
        **attributes,
    )
    state = [directions, "b", sizes[1]]
    stated: dict[str, Any] = {"h": state, "c": state, "lengths": (TensorProto.INT32, ["b"])}
    sources = {name: stated[name] for name in extras if name in stated}
    shape = {"x": ["t", "b", sizes[0]]}
    return make_model([node], shape | sources, dict.fromkeys(outputs), weights, opset=17)


_DYNAMIC = make_recipe({"activations": "dynamic"}, {})


def _converted(
    model: onnx.ModelProto, recipe: Recipe = _DYNAMIC
) -> tuple[onnx.ModelProto, list[Decision]]:
    graph = convertible_graph(model, "qdq", batch_one=False).model
    decisions = decide(graph, recipe)
    return convert(Conversion(graph=graph, decisions=tuple(decisions), ranges={})), decisions


def _feeds(model: onnx.ModelProto, steps: int = 30, batch: int = 2) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    sizes: dict[str, tuple[int, ...]] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        sizes[value.name] = (shape[0] or steps, batch, shape[-1])
    feeds: dict[str, Any] = {
        name: generator.normal(0, 0.5, size).astype(np.float32) for name, size in sizes.items()
    }
    if "lengths" in feeds:
        feeds["lengths"] = np.array([steps, steps // 2], np.int32)
    return feeds


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _lstm(
    weights: tuple[Any, Any, Any], x: Any, state: tuple[Any, Any], lengths: Any, peep: Any
) -> tuple[Any, Any, Any]:
    """Return y (T, B, H), the last h and the last c of one direction, by ONNX's definition."""
    w, r, b = (value.astype(np.float64) for value in weights)
    units = r.shape[1]
    h, c = state
    made = np.zeros((len(x), *h.shape))
    for step, frame in enumerate(x):
        gates = frame @ w.T + h @ r.T + b[: 4 * units] + b[4 * units :]
        i, o, f, g = np.split(gates, 4, axis=1)
        i, f = _sigmoid(i + peep[0] * c), _sigmoid(f + peep[2] * c)
        new_c = f * c + i * np.tanh(g)
        new_h = _sigmoid(o + peep[1] * new_c) * np.tanh(new_c)
        goes_on = (step < lengths)[:, None]
        h, c = np.where(goes_on, new_h, h), np.where(goes_on, new_c, c)
        made[step] = np.where(goes_on, new_h, 0)
    return made, h, c


def _reversed(x: Any, lengths: Any) -> Any:
    """Return each sequence backwards, its padding still behind it."""
    turned = x.copy()
    for i, length in enumerate(lengths):
        turned[:length, i] = x[:length, i][::-1]
    return turned


def _oracle(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    direction = next(a.s.decode() for a in model.graph.node[0].attribute if a.name == "direction")
    x = feeds["x"].astype(np.float64)
    lengths = feeds.get("lengths", np.full(x.shape[1], len(x)))
    parts = []
    for number, weights in enumerate(
        zip(*(constants[f"LSTM_{name}"] for name in "wrb"), strict=True)
    ):
        units = weights[1].shape[1]
        zeros = np.zeros((x.shape[1], units))
        state = tuple(feeds[n][number].astype(np.float64) if n in feeds else zeros for n in "hc")
        peep = constants["p"][number].reshape(3, units) if "p" in constants else np.zeros(3)
        backwards = direction == "reverse" or number == 1
        seen = _reversed(x, lengths) if backwards else x
        y, h, c = _lstm(weights, seen, (state[0], state[1]), lengths, peep)
        parts.append((_reversed(y, lengths) if backwards else y, h, c))
    y, h, c = zip(*parts, strict=True)
    return [np.stack(y, axis=1), np.stack(h), np.stack(c)]


@pytest.mark.parametrize(
    "extras", [(), ("h", "c"), ("lengths",), ("lengths", "h", "c", "p")], ids="+".join
)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_in_integers_is_near_what_its_definition_gives(
    direction: str, extras: tuple[str, ...]
) -> None:
    """Against numpy. Rounding to 8 bits is near 40 dB, and a wrong gate or direction near 0."""
    model = _recurrent(direction=direction, extras=extras)
    converted, (decision,) = _converted(model)
    assert decision.label == "LSTM int8/dynamic"
    (node,) = (node for node in converted.graph.node if node.domain == "com.microsoft")
    assert node.op_type == "DynamicQuantizeLSTM"
    feeds = _feeds(model)
    wanted = _oracle(model, feeds)
    for exact, plain, small in zip(
        wanted, run_model(model, feeds), run_model(converted, feeds), strict=True
    ):
        assert snr_db(exact, plain) > 90
        assert snr_db(exact, small) > 32


def test_weights_are_stored_once_in_a_byte_each() -> None:
    converted, (decision,) = _converted(_recurrent(direction="bidirectional"))
    stored = {t.name: t for t in converted.graph.initializer if t.data_type == TensorProto.INT8}
    held = [tensor for tensor in stored.values() if len(tensor.dims) == 3]
    assert sum(np.prod(tensor.dims) for tensor in held) == decision.parameters
    assert decision.parameters == 2 * 4 * _UNITS * (_INPUTS + _UNITS)
    assert len(converted.SerializeToString()) < 1.25 * decision.parameters


def test_neighbouring_weights_cannot_overflow(tmp_path: Path) -> None:
    """Neither those of inputs nor those of states; without protection some of each would."""
    model = _recurrent(direction="bidirectional")
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if tensor.name.endswith(("_w", "_r")):
            values[..., :2] = np.abs(values).max()
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    converted, _ = _converted(model)
    constants = {t.name: numpy_helper.to_array(t) for t in converted.graph.initializer}
    (node,) = (node for node in converted.graph.node if node.domain == "com.microsoft")
    for name in node.input[1:3]:
        for codes in constants[name]:
            sums = np.abs(neighbour_sums(codes.T.astype(int)))
            assert 100 < sums.max() <= PAIR_LIMIT
    found = OnnxModel(tmp_path / "m.onnx", spec="m", held=converted)
    layers = count_integer_layers(found)
    assert (layers.count, layers.overflowing, layers.signed) == (1, 0, 0)
    for name in node.input[1:3]:
        codes = constants[name].copy()
        codes[1, :2, 5] = 127
        unsafe = onnx.ModelProto()
        unsafe.CopyFrom(converted)
        tensor = next(t for t in unsafe.graph.initializer if t.name == name)
        tensor.CopyFrom(numpy_helper.from_array(codes, name))
        held = OnnxModel(tmp_path / "m.onnx", spec="m", held=unsafe)
        assert count_integer_layers(held).overflowing == 1


@pytest.mark.parametrize("inputs", [8, 7])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("position", ["input", "state"])
def test_kernel_multiplies_the_weights_together_that_count_as_neighbours(
    position: str, steps: int, inputs: int
) -> None:
    """Each unit has two weights of 127, all activations are 255 steps of one.

    The gate's argument is a hundredth of the sum, offset so that a sum that saturates shows.
    """
    pairs = list(itertools.combinations(range(inputs), 2))
    units = -(-max(len(pairs), inputs) // 8) * 8
    width = inputs if position == "input" else units
    codes = np.zeros((1, width, 4 * units), np.int8)
    rows = np.zeros((units, inputs), np.int8)
    for unit, pair in enumerate(pairs):
        rows[unit, list(pair)] = 127
        codes[0, list(pair), 3 * units + unit] = 127  # of the cell's gate
    silent = np.zeros((1, units if position == "input" else inputs, 4 * units), np.int8)
    # Input and output gates are open, the forget gate is shut; tanh(tanh(a)) tells a from a / 2.
    bias = np.zeros((1, 8 * units), np.float32)
    bias[0, : 2 * units] = 50
    bias[0, 2 * units : 3 * units] = -50
    exact = 2 * 127 * 255
    scale = np.full((1, 4 * units), 1 / exact, np.float32)
    zeros = np.zeros((1, 4 * units), np.int8)
    w, r = (codes, silent) if position == "input" else (silent, codes)
    constants: dict[str, Any] = {"w": w, "r": r, "b": bias, "s": scale, "z": zeros}
    x = np.full((steps, 1, inputs), 255.0, np.float32)
    h, c = np.full((1, 1, units), 255.0, np.float32), np.zeros((1, 1, units), np.float32)
    if position == "state":
        constants |= {"h": h, "c": c}
    states = ["h", "c"] if position == "state" else ["", ""]
    names = ["x", "w", "r", "b", "", *states, "", "s", "z", "s", "z"]
    kernel: dict[str, Any] = {"hidden_size": units, "domain": "com.microsoft"}
    node = make_node("DynamicQuantizeLSTM", " ".join(n or "-" for n in names), "y", **kernel)
    model = make_model(
        [node],
        {"x": [None, 1, inputs]},
        {"y": None},
        constants,
        opset=17,
        domains=("com.microsoft",),
    )
    made = run_model(model, {"x": x})[0][0, 0, 0]
    whole, half = np.tanh(np.tanh(1.0)), np.tanh(np.tanh(0.55))
    saturated = (made < (whole + half) / 2)[: len(pairs)]
    expected = np.abs(neighbour_sums(rows[:, :, None].astype(int))).max(axis=1) > PAIR_LIMIT
    expected = expected[: len(pairs)]
    if not describe_processor().adds_in_16_bits:
        expected[:] = False
    if inputs % 2 == 0:
        np.testing.assert_array_equal(saturated, expected)
    else:
        assert not (saturated & ~expected).any()


@pytest.mark.parametrize(
    ("operator", "attributes", "sizes"),
    [
        ("GRU", {}, (24, 64)),
        ("RNN", {}, (24, 64)),
        ("LSTM", {"layout": 1}, (24, 64)),
        ("LSTM", {}, (24, 32)),
    ],
    ids=["gru", "rnn", "batch first", "small"],
)
def test_what_has_no_faster_kernel_is_stored_small_and_says_so(
    operator: str, attributes: dict[str, Any], sizes: tuple[int, int]
) -> None:
    if attributes:  # onnxruntime plays no other LSTM than the time-first one
        model = _recurrent(operator, sizes=sizes)
        model.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
        decisions = decide(model, _DYNAMIC)
        assert [decision.label for decision in decisions] == ["LSTM int8/none"]
        return
    model = _recurrent(operator, "bidirectional", sizes=sizes)
    converted, (decision,) = _converted(model)
    assert decision.label == f"{operator} int8/none"
    assert decision.record().parameters == 2 * _GATES[operator] * sizes[1] * sum(sizes)
    feeds = _feeds(model)
    for wanted, found in zip(run_model(model, feeds), run_model(converted, feeds), strict=True):
        assert np.abs(wanted - found).max() < 0.02
    assert len(converted.SerializeToString()) < 0.4 * len(model.SerializeToString())


@pytest.mark.parametrize(("kind", "most"), [("float16", 2e-3), ("bfloat16", 1e-2)])
def test_weights_of_recurrent_operators_in_16_bits(kind: str, most: float) -> None:
    model = _recurrent(direction="bidirectional")
    converted, (decision,) = _converted(model, make_recipe({"weights": kind}))
    assert decision.label == f"LSTM {kind}/none"
    feeds = _feeds(model)
    for wanted, found in zip(run_model(model, feeds), run_model(converted, feeds), strict=True):
        assert np.abs(wanted - found).max() < most
    assert len(converted.SerializeToString()) < 0.55 * len(model.SerializeToString())


@pytest.mark.parametrize("scheme", ["int8", "int8-static", "int8-dynamic"])
def test_every_integer_scheme_of_a_graph_names_lstms(scheme: str) -> None:
    decisions = decide(_recurrent(), find_recipe("onnx", scheme))
    assert [decision.label for decision in decisions] == ["LSTM int8/dynamic"]


def test_inspect_counts_both_weights(tmp_path: Path) -> None:
    path = tmp_path / "lstm.onnx"
    onnx.save(_recurrent(direction="bidirectional"), path)
    (part,) = OnnxModel(path, spec="lstm").components().values()
    assert part.parameters == 2 * 4 * _UNITS * (_INPUTS + _UNITS)
    assert dict(part.operators) == {"LSTM": 1}
