"""Activations in 16 bits: everything local in time has codes, by operators that the graph has."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tests.rules import make_recipe
from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import Conversion, convert, prepare_conversion
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.progress import Silent
from tts_compress.recipes.formats import Observer
from tts_compress.recipes.recipe import Calibration


def _convolution(opset: int, smallest: float = 1.0, *, shared: bool = False) -> onnx.ModelProto:
    """Return a convolution and an activation; the weights of a channel are smaller by a factor."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((8, 8, 3)), "b": np.full(8, 2.0)}
    weights["w"][3] *= smallest
    nodes = [make_node("Conv", "x w b", "y", "/a/Conv"), make_node("Relu", "y", "z", "/b/Relu")]
    outputs: dict[str, Any] = {"z": [1, 8, 18]}
    if shared:
        nodes.append(make_node("Conv", "x w b", "other", "/c/Conv"))
        nodes.append(make_node("Relu", "other", "last", "/d/Relu"))
        outputs["last"] = [1, 8, 18]
    return make_model(nodes, {"x": [1, 8, 20]}, outputs, weights, opset=opset)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    rule = {"match": "[ac]", "weights": "int8", "activations": "static"}
    decisions = tuple(decide(model, make_recipe(rule, format="qdq16")))
    ranges = {"x": (-1.0, 3.0), "y": (-60.0, 60.0), "other": (-60.0, 60.0)}
    conversion = Conversion(graph=model, decisions=decisions, ranges=ranges, form="qdq16")
    return convert(conversion)


def _distance(model: onnx.ModelProto, finished: onnx.ModelProto) -> float:
    feeds = {"x": np.random.default_rng(1).uniform(-1, 3, (1, 8, 20)).astype(np.float32)}
    return snr_db(*(run_model(each, feeds)[0] for each in (model, finished)))


@pytest.mark.parametrize(("opset", "domains"), [(17, {"", "com.microsoft"}), (21, {""})])
def test_operators_are_standard_where_the_operator_set_has_them(
    opset: int, domains: set[str]
) -> None:
    model = _convolution(opset)
    finished = _converted(model)
    assert {node.domain for node in finished.graph.node} == domains
    assert _distance(model, finished) > 40


def test_a_bias_without_a_code_is_refused_where_weights_are_shared() -> None:
    """Its step is that of the products: with weights near zero its code is beyond 32 bits."""
    with pytest.raises(QuantizationError, match="a bias of '/a/Conv' has no code"):
        _converted(_convolution(17, smallest=1e-9, shared=True))
    model = _convolution(17, smallest=1e-9)
    assert _distance(model, _converted(model)) > 40


def _vocoder() -> onnx.ModelProto:
    """Return a stage that doubles time, and a last convolution."""
    random = np.random.default_rng(0)
    sizes = {"a": (8, 8, 3), "up": (8, 4, 4), "last": (1, 4, 3)}
    weights = {name: 0.2 * random.standard_normal(size) for name, size in sizes.items()}
    nodes = [
        make_node("Conv", "x a", "h", "/a/Conv", pads=[1, 1]),
        make_node("Add", "h x", "sum"),
        make_node("Div", "sum three", "mean"),
        make_node("ConvTranspose", "mean up", "wide", "/up/ConvTranspose", strides=[2]),
        make_node("LeakyRelu", "wide", "leaky"),
        make_node("Pad", "leaky amounts filling", "longer"),
        make_node("Slice", "longer begin end axis", "cut"),
        make_node("Conv", "cut last", "post", "/last/Conv"),
        make_node("Tanh", "post", "y"),
    ]
    places = {"begin": np.array([1]), "end": np.array([2**31]), "axis": np.array([2])}
    places["amounts"] = np.array([0, 0, 2, 0, 0, 2])
    # Beyond anything else: the codes of what is padded have to reach it.
    weights |= {"three": np.array(3.0), "filling": np.array(-5.0)}
    return make_model(nodes, {"x": [1, 8, "T"]}, {"y": [1, 1, "S"]}, weights | places)


def _feeds(steps: int, loudness: float = 1.0) -> dict[str, Any]:
    values = np.random.default_rng(steps).uniform(-loudness, loudness, (1, 8, steps))
    return {"x": values.astype(np.float32)}


def _prepared(*rules: dict[str, Any], steps: tuple[int, int] = (20, 40)) -> Conversion:
    rules = ({"match": "a", "activations": "static"}, *rules)
    recipe = make_recipe(*rules, format="qdq16", calibration=Calibration(observer=Observer.MINMAX))
    calls = Calls(lambda: map(_feeds, steps), 2)
    return prepare_conversion(_vocoder, recipe, calls, batch_one=False, progress=Silent())


def _static(conversion: Conversion) -> set[str]:
    return {d.operator for d in conversion.decisions if d.activations == "static"}


def test_everything_local_in_time_has_codes() -> None:
    """Also layers that no rule has in integers; an input louder than calibration's is kept."""
    conversion = _prepared({"match": "up"})
    every = {node.op_type for node in _vocoder().graph.node}
    assert _static(conversion) == every
    finished = convert(conversion)
    graph = Graph(finished)
    for node in (node for node in graph.nodes if node.op_type in every):
        makers = {maker and maker.op_type for maker in map(graph.producer, node.input[:2])}
        assert makers <= {"DequantizeLinear", None}, node.name
        assert {n.op_type for n in graph.readers(node.output[0])} == {"QuantizeLinear"}, node.name
    last = graph.producer("y")
    assert last is not None
    assert graph.scalar(last.input[1]) == 2**-15
    louder = _feeds(30, 1.5)
    assert snr_db(run_model(_vocoder(), louder)[0], run_model(finished, louder)[0]) > 35


def test_a_layer_in_fp32_is_not_between_codes() -> None:
    """Otherwise onnxruntime would round its weights itself."""
    kept = _prepared({"match": "up"}, {"match": "*", "exclude": ("last",)})
    assert kept.counts["Conv float32/none"] == 1
    assert "Tanh" not in _static(kept)
    assert "LeakyRelu" in _static(kept)


def test_without_two_lengths_only_rules_decide() -> None:
    assert _static(_prepared({"match": "up"}, steps=(20, 20))) == {"Conv"}


def test_rules_on_layers_leave_products_without_weights() -> None:
    nodes = [make_node("MatMul", "x y", "z"), make_node("Relu", "z", "r")]
    model = make_model(nodes, {"x": [4, 4], "y": [4, 4]}, {"r": [4, 4]})
    Graph(model).infer_types()
    rule = {"activations": "dynamic", "operators": ("MatMul",)}
    decisions = decide(model, make_recipe(rule), sound={"z", "r"}, may_keep_all=True)
    assert [decision.operator for decision in decisions] == ["Relu"]


def _kinds(nodes: list[onnx.NodeProto], *rules: dict[str, Any], lengths: str = "") -> Any:
    """Return the formats that a recipe gives to outputs, of which those named by one are sound."""
    weights = {"w": np.ones((4, 4)), "stack": np.ones((1, 4, 4))}
    model = make_model(nodes, {"x": [4, 4]}, {"y": None, "d": None}, weights)
    sound = {name for node in nodes for name in node.output if "outside" not in name}
    recipe = make_recipe(*rules)
    Graph(model).infer_types()
    decisions = decide(model, recipe, [lengths], sound=sound, may_keep_all=True)
    return {d.output: f"{d.weights}/{d.activations} {d.reason}" for d in decisions}


def test_what_logarithms_and_durations_are_of_has_no_codes() -> None:
    """A rule that names it changes nothing."""
    nodes = [
        make_node("Relu", "x", "r"),
        make_node("Abs", "r", "a"),
        make_node("Log", "a", "l"),
        make_node("Tanh", "l", "y"),
        make_node("Sigmoid", "x", "d"),
    ]
    rule = {"activations": "static", "operators": ("Conv", "Relu")}
    assert _kinds(nodes, rule, lengths="d") == {"y": "int8/static "}


def test_layers_that_rules_keep_are_not_between_codes() -> None:
    """Nor do rules on FP32 give codes to what has no weight, or codes divide by each other."""
    nodes = [
        make_node("MatMul", "x w", "outside", "/kept/MatMul"),
        make_node("Tanh", "outside", "t"),
        make_node("MatMul", "t w", "kept", "/kept/MatMul_1"),
        make_node("MatMul", "kept w", "h", "/a/MatMul"),
        make_node("Div", "h t", "q"),
        make_node("Sigmoid", "q", "s", "/kept/Sigmoid"),
        make_node("MatMul", "s w", "half", "/half/MatMul"),
        make_node("MatMul", "half stack", "matrices"),
        make_node("Relu", "matrices", "d"),
        make_node("Relu", "h", "y"),
    ]
    kinds = _kinds(
        nodes,
        {"match": "a"},
        {"match": "[ak]*", "weights": "float32"},
        {"match": "half", "weights": "float16"},
    )
    real, codes = "float32/none ", "int8/static "
    assert kinds == {
        "outside": real,
        "t": codes,
        "kept": real,
        "h": codes,
        "half": "float16/none ",
        "matrices": f"{real}no technique converts this operator",
        "y": codes,
    }
