"""Exported graphs are made fit for conversion."""

import signal as signals
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.graphs import Values, make_body, make_model, make_node, run_model
from tests.measures import snr_db
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.onnx.graph import copy_model, element_types
from tts_compress.onnx.modules import module_of
from tts_compress.onnx.quantize.prepare import optimize, prepare


def _modules(model: onnx.ModelProto) -> list[str]:
    return [module_of(node, ()) for node in model.graph.node if node.op_type == "Conv"]


def test_numbered_operators_get_their_modules_names(chain: onnx.ModelProto) -> None:
    """A rewrite changes the parameters' names, from which alone they would be known."""
    for tensor in chain.graph.initializer:
        tensor.name = f"net.{tensor.name}"
    for index, node in enumerate(chain.graph.node):
        node.name = f"{node.op_type}_{index}"
        for position, name in enumerate(node.input):
            if name.endswith((".weight", ".bias")):
                node.input[position] = f"net.{name}"
    assert _modules(chain) == ["", ""]
    assert _modules(prepare(chain)) == ["net.one", "net.two"]


def test_weight_norm_and_constants_are_folded(chain: onnx.ModelProto, signal: Any) -> None:
    weight = next(t for t in chain.graph.initializer if t.name == "one.weight")
    values = numpy_helper.to_array(weight)
    norm = np.sqrt(np.square(values).sum(axis=(1, 2), keepdims=True))
    weight.CopyFrom(numpy_helper.from_array(2 * values, "v"))
    chain.graph.initializer.append(numpy_helper.from_array(norm, "g"))
    folding = [
        make_node("ReduceL2", "v", "n", axes=[1, 2]),
        make_node("Div", "v n", "direction"),
        make_node("Mul", "direction g", "one.weight"),
    ]
    nodes = [*folding, *chain.graph.node]
    del chain.graph.node[:]
    chain.graph.node.extend(nodes)
    prepared = prepare(copy_model(chain))
    assert {t.dims[0] for t in prepared.graph.initializer if len(t.dims) == 3} == {16}
    assert not {"ReduceL2", "Div", "Mul"} & {node.op_type for node in prepared.graph.node}
    both = [run_model(m, {"x": signal})[0] for m in (chain, prepared)]
    assert snr_db(*both) > 100


def test_every_float_tensor_is_typed(chain: onnx.ModelProto) -> None:
    prepared = prepare(chain)
    known = {value.name for value in (*prepared.graph.value_info, *prepared.graph.output)}
    assert {name for node in prepared.graph.node for name in node.output} <= known
    assert [opset.domain for opset in prepared.opset_import] == [""]


def test_graph_the_runtime_refuses_is_our_own_error(chain: onnx.ModelProto) -> None:
    chain.graph.node[0].op_type = "Cornv"
    with pytest.raises(ModelError, match="onnxruntime cannot open 'the graph'"):
        prepare(chain)


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of a process")
def test_a_full_disk_is_called_that() -> None:
    """It was `Protobuf serialization failed`, as if the graph were broken."""
    import resource

    weights = {"w": np.ones((64, 64, 3), np.float32)}
    model = make_model([make_node("Conv", "x w", "y")], {"x": [1, 64, "n"]}, {"y": None}, weights)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signals.signal(signals.SIGXFSZ, signals.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        with pytest.raises(ArtifactError, match="no space is left there, or files may not be"):
            optimize(model, fuse=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signals.signal(signals.SIGXFSZ, before)


def test_bias_left_out_by_an_empty_name_is_no_input(chain: onnx.ModelProto, signal: Any) -> None:
    """`int8-dynamic` looked for its value: an assertion."""
    for node in chain.graph.node:
        if node.op_type == "Conv":
            node.input[2] = ""
        elif node.op_type == "ConvTranspose":
            node.input.append("")
    prepared = prepare(copy_model(chain))
    assert all(all(node.input) for node in prepared.graph.node)
    both = [run_model(m, {"x": signal})[0] for m in (chain, prepared)]
    assert snr_db(*both) > 100


def test_first_outputs_have_names() -> None:
    """One of two encoders whose last states alone are read was taken for the other."""
    sizes = {0: 3, 1: 5}
    weights = {f"w{i}": np.ones((1, 4 * n, 4)) for i, n in sizes.items()}
    weights |= {f"r{i}": np.ones((1, 4 * n, n)) for i, n in sizes.items()}
    nodes = [
        make_node("LSTM", f"x w{i} r{i}", f"all{i} h{i}", hidden_size=n) for i, n in sizes.items()
    ]
    for node in nodes:
        node.output[0] = ""
    prepared = prepare(make_model(nodes, {"x": [2, 1, 4]}, {"h0": None, "h1": None}, weights))
    assert len({node.output[0] for node in prepared.graph.node} - {""}) == 2


def test_runtime_tells_the_types_that_onnx_does_not_know() -> None:
    """Half precision was left out behind its own operators, or mixed with FP32."""
    weights = {"w": np.ones((4, 4)), "bias": np.ones(4)}
    fused = make_node("FusedGemm", "x w bias", "a", domain="com.microsoft", activation="Relu")
    nodes = [fused, make_node("MatMul", "a w", "b"), make_node("Neg", "b", "y")]
    model = make_model(nodes, {"x": [2, 4]}, {"y": None}, weights, domains=["com.microsoft"])
    types = element_types(prepare(model).graph)
    assert types["a"] == types["b"] == TensorProto.FLOAT


def test_operator_sets_of_branches_are_kept() -> None:
    def branch(operator: str, name: str, domain: str = "") -> onnx.GraphProto:
        return make_body([make_node(operator, "x", name, domain=domain)], {}, {name: None})

    either = make_node(
        "If",
        "flag",
        "y",
        then_branch=branch("QuickGelu", "one", "com.microsoft"),
        else_branch=branch("Neg", "other"),
    )
    inputs: Values = {"x": [2], "flag": (TensorProto.BOOL, [])}
    model = make_model([either], inputs, {"y": None}, domains=["com.microsoft"])
    assert "com.microsoft" in [opset.domain for opset in prepare(model).opset_import]


@pytest.mark.parametrize("opset", [11, 13])
def test_an_inputs_own_value_is_kept(opset: int) -> None:
    """In older operators it became a constant."""
    nodes = [make_node("MatMul", "x w", "h"), make_node("Mul", "h gain", "y")]
    weights, inputs = {"w": np.ones((4, 4)), "gain": np.ones(1)}, {"x": [2, 4], "gain": [1]}
    model = prepare(make_model(nodes, inputs, {"y": None}, weights, opset=opset))
    assert [value.name for value in model.graph.input] == ["x", "gain"]


def test_padding_states_all_axes() -> None:
    """Onnxruntime moved transposes past one that named some, which then read wrong ones."""
    amounts = {"few": np.array([1, 2]), "axis": np.array([-1]), "zero": np.zeros(())}
    nodes = [
        make_node("Pad", "x few zero axis", "a"),
        make_node("Pad", "a few", "b"),
        make_node("Neg", "b", "y"),
    ]
    nodes[1].input[:] = ["a", "few", "", "axis"]
    model = make_model(nodes, {"x": [1, 3, "T"]}, {"y": None}, amounts, opset=18)
    prepared = prepare(copy_model(model))
    held = {t.name: numpy_helper.to_array(t).tolist() for t in prepared.graph.initializer}
    pads = [node for node in prepared.graph.node if node.op_type == "Pad"]
    assert [held[node.input[1]] for node in pads] == [[0, 0, 1, 0, 0, 2]] * 2
    assert [len(node.input) for node in pads] == [3, 2]
    assert element_types(prepared.graph)["a"] == TensorProto.FLOAT
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    (before,), (after,) = (run_model(m, {"x": x}) for m in (model, prepared))
    assert np.array_equal(before, after)
