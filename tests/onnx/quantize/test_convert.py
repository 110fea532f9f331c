"""Converted graphs compute nearly the same, and hold exactly what was promised."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.graphs import make_body, make_model, make_node, operators_of, run_model
from tests.measures import snr_db
from tests.onnx.conversion import make_calls, prepared
from tests.rules import make_recipe
from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import Range, choose_range
from tts_compress.onnx.graph import Graph, copy_model, element_types
from tts_compress.onnx.quantize import operators
from tts_compress.onnx.quantize.collect import collect
from tts_compress.onnx.quantize.convert import Conversion, convert, count_fused, count_operators
from tts_compress.onnx.quantize.decisions import Decision, count_decisions, decide
from tts_compress.onnx.quantize.operators import observed_tensors, store_weights
from tts_compress.onnx.session import Feeds
from tts_compress.recipes.formats import Observer
from tts_compress.recipes.recipe import Calibration, find_recipe

Decided = Callable[..., tuple[onnx.ModelProto, list[Decision]]]

_STATIC = {"activations": "static", "operators": ("Conv", "LeakyRelu", "Add")}
_WAYS: dict[str, tuple[list[dict[str, Any]], float]] = {
    # Least SNR in dB. A uniform 8-bit rounding of a bell-shaped tensor is near 40 dB and there are
    # up to five in a row; half precision has 11 bits (66 dB), bfloat16 8 (50 dB).
    "int8": ([{}], 35),
    "dynamic": ([{"activations": "dynamic"}, {}], 30),
    "static": ([_STATIC, {}], 28),
    "int16": ([{"weights": "int16"}], 84),
    "float16 stored": ([{"weights": "float16"}], 60),
    "float16": ([{"weights": "float16", "activations": "float16"}], 55),
    "bfloat16": ([{"weights": "bfloat16"}], 42),
}


def _convert(graph: onnx.ModelProto, decisions: list[Decision], signal: Any) -> onnx.ModelProto:
    wanted = observed_tensors(graph, decisions)
    seen, _ = collect(graph, wanted, [], [{"x": signal}, {"x": signal[:, :, :9]}])
    ranges = {
        name: choose_range(seen[name], Calibration(observer=Observer.MINMAX)) for name in wanted
    }
    return _finish(graph, decisions, ranges)


def _finish(
    graph: onnx.ModelProto, decisions: list[Decision], ranges: dict[str, Range]
) -> onnx.ModelProto:
    return convert(Conversion(graph=graph, decisions=tuple(decisions), ranges=ranges))


def _run(model: onnx.ModelProto, signal: Any) -> Any:
    return run_model(model, {"x": signal})[0]


@pytest.mark.parametrize("way", _WAYS)
def test_output_stays_near_and_counts_are_as_promised(
    decided: Decided, chain: onnx.ModelProto, signal: Any, way: str
) -> None:
    rules, least = _WAYS[way]
    graph, decisions = decided(*rules)
    converted = _convert(graph, decisions, signal)
    onnx.checker.check_model(converted, full_check=True)
    assert count_operators(converted) == count_decisions(decisions)
    assert len(converted.SerializeToString()) < 0.9 * len(chain.SerializeToString())
    for length in (40, 7):
        part = signal[:, :, :length]
        assert snr_db(_run(chain, part), _run(converted, part)) > least


def _squeezed_if(name: str) -> onnx.NodeProto:
    """Return `name.squeeze(1)` as torch exports it where it does not know the channels."""
    axes = onnx.numpy_helper.from_array(np.array([1]))
    squeeze = [
        make_node("Constant", "", f"{name}.axes", value=axes),
        make_node("Squeeze", f"{name} {name}.axes", f"{name}.squeezed"),
    ]
    keep = [make_node("Identity", name, f"{name}.kept")]
    branches = {
        "then_branch": make_body(squeeze, {}, {f"{name}.squeezed": None}),
        "else_branch": make_body(keep, {}, {f"{name}.kept": None}),
    }
    return make_node("If", "is_one", f"{name}.flat", f"/net/{name}/If", **branches)


@pytest.fixture
def melody() -> onnx.ModelProto:
    """Return a predictor with two one-tap convolutions whose results only branches read."""
    generator = np.random.default_rng(0)
    shapes = {"pre.weight": (16, 8, 3), "f0.weight": (1, 16, 1), "n.weight": (1, 16, 1)}
    tensors = {name: generator.normal(0, 0.2, shape) for name, shape in shapes.items()}
    nodes = [
        make_node("Conv", "x pre.weight", "h", "/net/pre/Conv", pads=[1, 1]),
        make_node("Conv", "h f0.weight", "f0", "/net/f0/Conv"),
        make_node("Conv", "h n.weight", "n", "/net/n/Conv"),
        make_node("Shape", "x", "shape", start=0, end=1),
        make_node("ReduceProd", "shape", "batch", keepdims=0),
        make_node("Cast", "batch", "is_one", to=onnx.TensorProto.BOOL),
        *map(_squeezed_if, ("f0", "n")),
        make_node("Add", "f0.flat n.flat", "y", "/net/Add"),
    ]
    return make_model(nodes, {"x": ["b", 8, "t"]}, {"y": None}, tensors, opset=17)


def test_convolutions_that_branches_read_are_fused(
    decided: Decided, melody: onnx.ModelProto, signal: Any
) -> None:
    rule = {"activations": "static", "operators": ("Conv",)}
    graph, decisions = decided(rule, {}, model=melody)
    converted = _convert(graph, decisions, signal)
    assert count_fused(converted) == 3
    assert snr_db(_run(melody, signal), _run(converted, signal)) > 28


@pytest.mark.parametrize("way", ["int8", "dynamic", "float16"])
def test_branches_read_what_they_did(
    decided: Decided, melody: onnx.ModelProto, signal: Any, way: str
) -> None:
    """In half precision, too, a branch gets FP32."""
    rules, least = _WAYS[way]
    converted = _finish(*decided(*rules, model=melody), {})
    assert snr_db(_run(melody, signal), _run(converted, signal)) > least


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_weights_of_16_bits_take_two_bytes(decided: Decided, kind: str) -> None:
    """In bfloat16 they took three: each a number of variable length of its own."""
    graph, decisions = decided({"weights": kind})
    weights = {tensor.name: tensor for tensor in _finish(graph, decisions, {}).graph.initializer}
    values = onnx.numpy_helper.to_array(weights["matrix.weight." + kind])
    exact = {tensor.name: tensor for tensor in graph.graph.initializer}["matrix.weight"]
    step = 2.0**-8 if kind == "bfloat16" else 2.0**-11
    wanted = onnx.numpy_helper.to_array(exact)
    assert (np.abs(values.astype(np.float32) - wanted) <= step * np.abs(wanted)).all()
    for decision in decisions:
        name = f"{decision.weight}.{kind}"
        small = weights.get(name) or weights[f"{name}.2d"]
        assert small.ByteSize() < 2 * decision.parameters + 64


@pytest.mark.parametrize(
    ("inputs", "kind", "bits"), [(8, "int12", 12), (5, "int12", 16), (8, "int16", 16)]
)
def test_two_parts_hold_a_weight_to_half_a_step(inputs: int, kind: str, bits: int) -> None:
    """Four bits go in pairs into bytes: an odd number of weights has two parts of 8."""
    weight = np.random.default_rng(0).normal(size=(3, inputs, 1)).astype(np.float32)
    node = make_node("Conv", "x w", "y", "/a/Conv")
    model = make_model([node], {"x": [1, inputs, inputs]}, {"y": [1, 3, inputs]}, {"w": weight})
    rule = {"match": "a", "weights": kind}
    finished = _finish(model, list(decide(model, make_recipe(rule))), {})
    feeds = {"x": np.eye(inputs, dtype=np.float32)[None]}
    (held,) = run_model(finished, feeds)
    largest = np.abs(weight[:, :, 0]).max(1, keepdims=True)
    steps = 127 * 2 ** (bits - 8) + 2 ** (bits - 9) - 1
    assert (np.abs(held[0] - weight[:, :, 0]) <= 0.501 * largest / steps).all()
    parts = [t for t in finished.graph.initializer if t.name in {"w.high", "w.low", "w.low.pairs"}]
    assert sum(len(part.raw_data) for part in parts) == bits / 8 * weight.size


@pytest.mark.parametrize("way", ["int8", "dynamic", "static", "float16"])
def test_any_runtime_computes_the_same(decided: Decided, signal: Any, way: str) -> None:
    """Against ONNX's own reference; one step of rounding may fall either way."""
    graph, decisions = decided(*_WAYS[way][0])
    converted = _convert(graph, decisions, signal)
    portable = copy_model(converted)
    portable.opset_import[0].version = 21  # the reference has no older form of these operators
    (wanted,) = ReferenceEvaluator(portable).run(None, {"x": signal})
    assert snr_db(wanted, _run(converted, signal)) > 38


def test_operator_that_gives_fp32_to_the_caller_is_left_to_the_next_rule(decided: Decided) -> None:
    """The last product's result is not rounded, so it stays out of the integer pattern."""
    _, decisions = decided({"activations": "static", "operators": ("Conv", "MatMul")}, {})
    assert [d.activations for d in decisions if d.operator == "MatMul"] == ["none"]
    assert {d.activations for d in decisions if d.operator == "Conv"} == {"static"}


def test_operator_the_runtime_would_not_fuse_is_refused(
    decided: Decided, signal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named: here one whose result is read before it was rounded."""
    done = operators.quantize_statically

    def sabotage(graph: Graph, *given: Any) -> None:
        done(graph, *given)
        (reader,) = (node for node in graph.nodes if node.op_type == "Add")
        graph.replace_input(reader, 1 - list(reader.input).index("c.rounded"), "c")

    monkeypatch.setattr("tts_compress.onnx.quantize.operators.quantize_statically", sabotage)
    graph, decisions = decided({"activations": "static", "operators": ("Conv",)}, {})
    says = r"promises 2 integer operators.* runs only 1 .*and '/net/two/Conv' in FP32"
    with pytest.raises(QuantizationError, match=says):
        _convert(graph, decisions, signal)


def test_more_layers_on_codes_than_promised_are_no_fault() -> None:
    """The runtime rounds the weights of a layer between two on codes; it was refused as FP32."""
    generator = np.random.default_rng(0)
    shapes = {"first": (16, 8, 3), "depthwise": (16, 1, 5), "last": (16, 16, 3)}
    nodes = [
        make_node("Conv", "x first", "a", pads=[1, 1]),
        make_node("Conv", "a depthwise", "b", pads=[2, 2], group=16),
        make_node("Conv", "b last", "c", pads=[1, 1]),
        make_node("Neg", "c", "y"),
    ]
    weights = {name: generator.normal(0, 0.2, shape) for name, shape in shapes.items()}
    model = make_model(nodes, {"x": [1, 8, "t"]}, {"y": None}, weights)

    def call(seed: int) -> Feeds:
        return {"x": np.random.default_rng(seed).normal(size=(1, 8, 64)).astype(np.float32)}

    recipe = find_recipe("onnx", "int8-static")
    converted = convert(prepared(model, recipe, make_calls(call), batch_one=False))
    assert count_operators(converted) == {"Conv int8/static": 2, "Conv float32/none": 1}
    before, after = (run_model(one, call(100))[0] for one in (model, converted))
    assert snr_db(before, after) > 30


def test_weight_that_was_not_converted_is_found(
    decided: Decided, signal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sabotage(graph: Graph, *given: Any) -> None:
        store_weights(graph, *given)
        node = next(node for node in graph.nodes if node.op_type == "Conv")
        graph.replace_input(node, 1, "one.weight")

    monkeypatch.setattr("tts_compress.onnx.quantize.convert.store_weights", sabotage)
    graph, decisions = decided({})
    with pytest.raises(QuantizationError, match=r"'Conv float32/none': 1.*promises"):
        _convert(graph, decisions, signal)


def test_weight_beyond_half_precision_is_refused(decided: Decided, chain: onnx.ModelProto) -> None:
    weights = {t.name: t for t in chain.graph.initializer}
    values = np.frombuffer(weights["one.weight"].raw_data, np.float32).copy()
    values[0] = 1e5
    weights["one.weight"].raw_data = values.tobytes()
    for activations in ("float16", "none"):
        graph, decisions = decided({"weights": "float16", "activations": activations})
        with pytest.raises(QuantizationError, match="beyond float16"):
            _finish(graph, decisions, {})


def test_an_epsilon_stays_one_in_half_precision(decided: Decided, chain: onnx.ModelProto) -> None:
    """It was zero, and the reciprocal of silence infinite. Weights may be as small."""
    weight = next(t for t in chain.graph.initializer if t.name == "matrix.weight")
    small = onnx.numpy_helper.to_array(weight) * np.float32(1e-9)
    weight.CopyFrom(onnx.numpy_helper.from_array(small, weight.name))
    epsilon = np.array(1e-8, np.float32)
    chain.graph.initializer.append(onnx.numpy_helper.from_array(epsilon, "epsilon"))
    chain.graph.node[-1].output[0] = "energy"
    chain.graph.node.append(make_node("Add", "energy epsilon", "sum", "/net/Add_1"))
    chain.graph.node.append(make_node("Reciprocal", "sum", "y", "/net/Reciprocal"))
    graph, decisions = decided({"weights": "float16", "activations": "float16"}, model=chain)
    converted = _finish(graph, decisions, {})
    assert count_operators(converted)["MatMul float16/float16"] == 1
    assert np.isfinite(_run(converted, np.zeros((1, 8, 4), np.float32))).all()


def test_half_precision_ends_at_modules_and_components_that_stay(decided: Decided) -> None:
    """A layer that is halved is so in a module with others that stay, too."""
    nodes = [
        make_node("Conv", "x w", "a", "/net/a/Conv"),
        make_node("Tanh", "a", "b", "/net/a/Tanh"),
        make_node("Conv", "b w", "c", "/net/mixed/Conv"),
        make_node("MatMul", "c v", "d", "/net/mixed/MatMul"),
        make_node("Sigmoid", "d", "e", "/net/mixed/Sigmoid"),
        make_node("Mul", "e b", "f", "/net/Mul"),
        make_node("Cast", "f", "g", "/net/Cast", to=onnx.TensorProto.INT32),
        make_node("Concat", "g g", "h", "/net/Concat", axis=1),
        make_node("Tanh", "f", "i", "/other/Tanh"),
    ]
    weights = {"w": np.ones((8, 8, 1)) / 8, "v": np.ones((9, 9)) / 9}
    whole = (onnx.TensorProto.INT32, None)
    model = make_model(nodes, {"x": [1, 8, 9]}, {"i": None, "h": whole}, weights)
    rule = {"weights": "float16", "activations": "float16", "operators": ("Conv",)}
    converted = _finish(*decided(rule, model=model), {})
    types = element_types(onnx.shape_inference.infer_shapes(converted).graph)
    halves = (n for n in converted.graph.node if types[n.output[0]] == onnx.TensorProto.FLOAT16)
    layers = {"/net/a/Conv", "/net/a/Tanh", "/net/mixed/Conv", "/net/Mul"}
    assert {node.name for node in halves if node.op_type != "Cast"} == layers
    # The input and `e` are narrowed, `c` and `f` widened; one was there.
    assert operators_of(converted).count("Cast") == 5
    assert snr_db(*(_run(m, np.ones((1, 8, 9), np.float32)) for m in (model, converted))) > 55


def test_input_graph_is_not_changed(decided: Decided, signal: Any) -> None:
    graph, decisions = decided(_STATIC, {})
    before = graph.SerializeToString(deterministic=True)
    _convert(graph, decisions, signal)
    assert graph.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("way", ["int8", "bfloat16"])
@pytest.mark.parametrize("shape", [(300, 16), (1, 300, 16)])
def test_table_of_positions_that_is_cut_is_stored_small(
    decided: Decided, way: str, shape: tuple[int, ...]
) -> None:
    """Transformers cut theirs to the length of the text. A small one stays in FP32."""
    generator = np.random.default_rng(0)
    tables = {"table": generator.normal(size=shape), "small": generator.normal(size=(20, 16))}
    bounds = {"zero": [0], "axis": [len(shape) - 2], "first": [0]}
    nodes = [
        make_node("Slice", "table zero n axis", "a", "/net/positions/Slice"),
        make_node("Slice", "small zero n first", "b", "/net/other/Slice"),
        make_node("Add", "a b", "y", "/net/Add"),
    ]
    constants = tables | {name: np.array(value) for name, value in bounds.items()}
    sources = {"n": (onnx.TensorProto.INT64, [1])}
    model = make_model(nodes, sources, {"y": None}, constants, opset=17)
    converted = _finish(*decided(*_WAYS[way][0], model=model), {})
    assert count_operators(converted) == {f"Slice {way}/none": 1}
    feeds = {"n": np.array([17])}
    (before,), (after,) = (run_model(one, feeds) for one in (model, converted))
    assert snr_db(before, after) > 40
    assert len(converted.SerializeToString()) < 0.7 * len(model.SerializeToString())


def test_traces_of_the_exporter_are_left_out() -> None:
    """Paths and lines of the source, for every operator, were half of an artifact."""
    nodes = [make_node("Conv", "x w", "h"), make_node("Tanh", "h", "y")]
    for key in ("pkg.torch.onnx.stack_trace", "namespace"):
        nodes[1].metadata_props.add(key=key, value='File "/home/me/net.py"')
    model = make_model(nodes, {"x": [1, 16, 8]}, {"y": None}, {"w": np.ones((16, 16, 3))})
    decisions = tuple(decide(model, make_recipe({})))
    finished = convert(Conversion(graph=model, decisions=decisions, ranges={}))
    assert [entry.key for n in finished.graph.node for entry in n.metadata_props] == ["namespace"]
