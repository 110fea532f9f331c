"""The rule that decides about each operator."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import Values, make_model, make_node
from tests.rules import make_recipe
from tts_compress.errors import QuantizationError
from tts_compress.onnx.quantize.convert import Conversion, convert, count_operators
from tts_compress.onnx.quantize.decisions import count_decisions, decide
from tts_compress.onnx.quantize.prepare import prepare
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.recipes.recipe import Calibration, Recipe, Rule, find_recipe

Decided = Callable[..., tuple[onnx.ModelProto, list[Any]]]


def _conversion(graph: onnx.ModelProto, decisions: list[Any]) -> Conversion:
    return Conversion(graph=graph, decisions=tuple(decisions), ranges={})


def test_first_rule_that_can_decides(decided: Decided) -> None:
    _, decisions = decided(
        {"match": "net.one"}, {"activations": "dynamic"}, {"match": "*", "weights": "float16"}
    )
    assert {d.module: (d.weights, d.activations) for d in decisions} == {
        "net.one": ("int8", "none"),
        "net.two": ("int8", "dynamic"),
        "net.up": ("float16", "none"),  # no integer kernel transposes a convolution
        "net.matrix": ("int8", "dynamic"),
    }


def test_excluded_modules_stay(decided: Decided) -> None:
    _, decisions = decided({"exclude": ("net.two", "net.up")})
    assert count_decisions(decisions) == Counter(
        {
            "Conv int8/none": 1,
            "Conv float32/none": 1,
            "ConvTranspose float32/none": 1,
            "MatMul int8/none": 1,
        }
    )


def test_operators_without_weights_are_decided_only_when_named(decided: Decided) -> None:
    named = {"activations": "static", "operators": ("Conv", "LeakyRelu", "Add")}
    _, decisions = decided(named, {})
    assert [d.operator for d in decisions if d.weight is None] == ["LeakyRelu", "Add"]
    _, decisions = decided({"activations": "static"}, {})
    assert all(d.weight is not None for d in decisions)


def test_sums_of_whole_numbers_and_results_are_not_decided(decided: Decided) -> None:
    """The caller gets FP32, and lengths and places are not rounded."""
    nodes = [
        make_node("Conv", "x w", "h", "/net/Conv"),
        make_node("Add", "h h", "sum"),
        make_node("LeakyRelu", "sum", "y"),
        make_node("Shape", "x", "size"),
        make_node("Add", "size size", "sizes"),
        make_node("Neg", "sizes", "places"),
    ]
    outputs: Values = {"y": None, "places": (TensorProto.INT64, None)}
    model = make_model(nodes, {"x": ["b", 8, "t"]}, outputs, {"w": np.ones((8, 8, 3))})
    named = {"activations": "static", "operators": ("Conv", "LeakyRelu", "Add")}
    _, decisions = decided(named, model=model)
    assert [d.output for d in decisions] == ["h", "sum"]


@pytest.mark.parametrize(
    ("narrowest", "static"),
    [
        (16, ("net.one", "net.two", "net.up")),
        (17, ("net.two",)),  # five taps make up for a channel
        (27, ()),
    ],
)
def test_what_is_slower_in_integers_stays_real(
    chain: onnx.ModelProto, narrowest: int, static: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_compress.onnx.quantize.decisions._NARROWEST", narrowest)
    chain.graph.node[4].attribute.append(helper.make_attribute("pads", [1, 1]))
    recipe = make_recipe({"activations": "static"}, {}, format="qoperator")
    decisions = decide(prepare(chain), recipe)
    assert {d.module for d in decisions if d.activations == "static"} == set(static)
    assert {d.weights for d in decisions} == {"int8"}


@pytest.mark.parametrize(("taps", "covered"), [(3, 4), (4, 3), (5, 2), (6, 1)])
def test_kernels_with_few_taps_can_be_left_out(decided: Decided, taps: int, covered: int) -> None:
    """A matrix has no taps to count."""
    _, decisions = decided({"min_kernel": taps})
    assert sum(decision.weights == "int8" for decision in decisions) == covered


def test_what_reads_an_upsampled_signal_can_be_left_out(
    decided: Decided, chain: onnx.ModelProto
) -> None:
    """Behind an activation, too; not past another convolution."""
    weight = numpy_helper.from_array(np.ones((8, 8, 3), np.float32), "later.weight")
    chain.graph.initializer.append(weight)
    added = [
        make_node("LeakyRelu", "e", "e.act", "/net/Act"),
        make_node("Conv", "e.act later.weight", "g", "/net/three/Conv", pads=[1, 1]),
        make_node("Conv", "g later.weight", "h", "/net/four/Conv", pads=[1, 1]),
    ]
    for place, node in enumerate(added, 5):
        chain.graph.node.insert(place, node)
    chain.graph.node[8].input[0] = "h"
    _, decisions = decided({}, model=chain)
    assert {decision.weights for decision in decisions} == {"int8"}
    _, decisions = decided({"skip_upsampled": True}, model=chain)
    assert {d.module: str(d.weights) for d in decisions} == {
        "net.one": "int8",
        "net.two": "int8",
        "net.up": "int8",
        "net.three": "float32",
        "net.four": "int8",
        "net.matrix": "int8",
    }


@pytest.mark.parametrize(("least", "covered"), [(48, 4), (49, 3), (385, 2), (1281, 0)])
def test_small_weights_can_be_left_out(decided: Decided, least: int, covered: int) -> None:
    other = {"match": "*", "weights": "float16"}
    _, decisions = decided({"min_weights": least}, other)
    assert sum(decision.weights == "int8" for decision in decisions) == covered


@pytest.mark.parametrize(
    ("share", "covered"), [(0.0, 4), (0.019, 4), (0.022, 3), (0.4, 2), (0.99, 1)]
)
def test_smallest_weights_can_be_left_out_by_their_share(
    decided: Decided, share: float, covered: int
) -> None:
    """There are 48, 384, 512 and 1280; as many are left out as the share holds together."""
    rule, other = {"skip_smallest": share}, {"match": "*", "weights": "float16"}
    _, decisions = decided(rule, other)
    assert sum(d.weights == "int8" for d in decisions) == covered
    assert sum(d.weights == "float16" for d in decisions) == 4 - covered


def test_weights_of_twelve_bits_are_counted_as_such(decided: Decided) -> None:
    """They were called `int8` in manifests, after the codes that they are read from."""
    conversion = _conversion(*decided({"weights": "int12"}))
    assert {label.split()[1] for label in conversion.counts} == {"int12/none"}
    assert count_decisions(conversion.decisions) == count_operators(convert(conversion))


def test_parameters_are_counted(decided: Decided) -> None:
    _, decisions = decided({})
    assert [d.parameters for d in decisions] == [16 * 8 * 3, 16 * 16 * 5, 16 * 8 * 4, 8 * 6]


def test_recipe_that_compresses_nothing_is_refused(decided: Decided) -> None:
    with pytest.raises(QuantizationError, match=r"no module matches 'decoder\.\*'.*net"):
        decided({"match": "decoder.*"})


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ({"activations": "static", "operators": ("ConvTranspose",)}, "ConvTranspose"),
        ({"activations": "dynamic", "operators": ("Gather", "Conv")}, "Gather"),
        ({"operators": ("Einsum",)}, "Einsum"),
    ],
)
def test_operators_a_technique_cannot_convert_are_refused(
    decided: Decided, rule: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(QuantizationError, match=f"names {wrong};.*it can convert .*Conv"):
        decided(rule)


def test_product_with_a_stack_of_matrices_is_left_alone(
    decided: Decided, chain: onnx.ModelProto
) -> None:
    """A scale per output column does not fit the integer product of a whole stack."""
    stack = numpy_helper.from_array(np.ones((1, 8, 6), np.float32), "matrix.weight")
    weights = [t for t in chain.graph.initializer if t.name != "matrix.weight"]
    del chain.graph.initializer[:]
    chain.graph.initializer.extend([*weights, stack])
    graph, decisions = decided({"activations": "dynamic"}, {})
    (product,) = (d for d in decisions if d.module == "net.matrix")
    assert (product.weights, product.reason) == ("float32", "no technique converts this operator")
    assert count_decisions(decisions) == count_operators(convert(_conversion(graph, decisions)))


def test_what_reads_a_graphs_input_in_another_form_can_be_left_out(decided: Decided) -> None:
    weights = {name: np.ones((32, 32, 3)) for name in ("first", "second", "third")}
    nodes = [
        make_node("Transpose", "x", "turned", perm=[0, 2, 1]),
        make_node("Conv", "turned first", "h"),
        make_node("Conv", "h second", "g"),
        make_node("Conv", "g third", "y"),
    ]
    model = make_model(nodes, {"x": [1, 32, 32]}, {"y": None}, weights)
    rule = {"activations": "static", "skip_graph_inputs": True, "operators": ("Conv",)}
    _, decisions = decided(rule, {}, model=model)
    assert [d.activations for d in decisions][:2] == ["none", "static"]


def test_what_the_runtime_fused_and_nothing_splits_is_left_alone(decided: Decided) -> None:
    """It was counted in the finished graph, and nothing had promised it: the voice was refused."""
    nodes = [
        make_node("FusedMatMul", "x stack", "h", domain="com.microsoft", alpha=0.5),
        make_node("MatMul", "h w", "y", "/net/MatMul"),
    ]
    weights = {"stack": np.ones((1, 8, 8)), "w": np.ones((8, 8))}
    model = make_model(nodes, {"x": [1, 4, 8]}, {"y": None}, weights, domains=["com.microsoft"])
    conversion = _conversion(*decided({}, model=model))
    assert conversion.counts == {"FusedMatMul float32/none": 1, "MatMul int8/none": 1}
    assert conversion.counts == count_operators(convert(conversion))
    (fused, _) = conversion.layers
    assert fused.reason == "no technique converts this operator"


def test_convolution_with_a_computed_bias_is_left_alone(
    decided: Decided, chain: onnx.ModelProto
) -> None:
    """Its bias cannot be stored in the scale of the products."""
    chain.graph.input.append(helper.make_tensor_value_info("shift", 1, [16]))
    chain.graph.node[2].input[2] = "shift"
    graph, decisions = decided({"activations": "dynamic", "operators": ("Conv",)}, {})
    assert {d.module: d.weights for d in decisions}["net.two"] == "float32"
    assert count_decisions(decisions) == count_operators(convert(_conversion(graph, decisions)))


def test_small_table_is_left_alone(decided: Decided, chain: onnx.ModelProto) -> None:
    """It is not worth an operator, and it is counted as what it is, and told."""
    table = numpy_helper.from_array(np.ones((4, 8), np.float32), "table")
    chain.graph.initializer.append(table)
    chain.graph.input.append(helper.make_tensor_value_info("ids", 7, ["b", "t"]))
    chain.graph.node.append(make_node("Gather", "table ids", "z", "/net/emb/Gather"))
    chain.graph.output.append(helper.make_tensor_value_info("z", 1, ["b", "t", 8]))
    graph, decisions = decided({"activations": "dynamic"}, {})
    (small,) = (d for d in decisions if d.module == "net.emb")
    assert (small.weights, small.reason[:29]) == ("float32", "a table of fewer than 4,096 w")
    assert count_decisions(decisions) == count_operators(convert(_conversion(graph, decisions)))


def test_weights_of_other_operators_alone_are_refused() -> None:
    """The graph was said to have no constant weights."""
    product = make_node("Einsum", "x w", "y", equation="td,dk->tk")
    model = make_model([product], {"x": ["t", 8]}, {"y": None}, {"w": np.ones((8, 8))})
    with pytest.raises(QuantizationError, match=r"no weight of a layer .*: Conv, .*MatMul"):
        decide(prepare(model), find_recipe("onnx", "int8-weight-only"))


@pytest.mark.parametrize(
    "rule",
    [
        Rule(match="*", weights=Weights.FLOAT8, activations=Activations.FLOAT8),
        Rule(match="*", weights=Weights.BFLOAT16, activations=Activations.BFLOAT16),
        Rule(match="*", weights=Weights.INT4, algorithm=Algorithm.INC_GPTQ),
    ],
    ids=str,
)
def test_what_only_torch_has_is_refused(chain: onnx.ModelProto, rule: Rule) -> None:
    recipe = Recipe(
        version=1,
        family="onnx",
        scheme="int8-weight-only",
        summary="",
        component=(rule,),
        calibration=Calibration() if rule.algorithm != "rtn" else None,
    )
    with pytest.raises(QuantizationError, match="for models that run in torch"):
        decide(prepare(chain), recipe)
