"""Noise that is fed means what the random operator meant, and pairs two graphs."""

from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_body, make_model, make_node
from tts_compress.errors import ModelError
from tts_compress.onnx.noise import NOISE_LENGTH, draw_noise, feed_noise, noise_inputs
from tts_compress.onnx.session import input_names, open_session


def _random(*operators: str, **attributes: Any) -> onnx.ModelProto:
    """Return a graph whose outputs are random, one per operator, of the input's shape."""
    kinds = operators or ("RandomNormalLike",)
    nodes = [
        make_node(kind, "x" if kind.endswith("Like") else "", f"y{i}", **attributes)
        for i, kind in enumerate(kinds)
    ]
    dtype = attributes.get("dtype", TensorProto.FLOAT)
    outputs = {f"y{i}": (dtype, None) for i in range(len(kinds))}
    return make_model(nodes, {"x": ["b", "c", "t"]}, outputs)


def _run(model: onnx.ModelProto, shape: tuple[int, ...], **feeds: Any) -> list[npt.NDArray[Any]]:
    session = open_session(model, "test")
    names = noise_inputs(input_names(session))
    noise = {name: feeds[f"n{i}"] for i, name in enumerate(names)}
    return list(session.run(None, {"x": np.zeros(shape, np.float32)} | noise))


def test_mean_and_scale_of_the_operator_are_kept() -> None:
    values = np.array([-1.0, 0.0, 2.0], np.float32)
    (found,) = _run(feed_noise(_random(mean=3.0, scale=0.5)), (1, 1, 3), n0=values)
    np.testing.assert_allclose(found.reshape(-1), 3 + 0.5 * values)


def test_longer_graph_gets_the_same_noise_at_the_same_time() -> None:
    """A candidate that speaks a frame longer is still paired up to there."""
    fed = feed_noise(_random())
    values = np.random.default_rng(0).normal(size=200).astype(np.float32)
    (short,), (long,) = _run(fed, (1, 4, 20), n0=values), _run(fed, (1, 4, 21), n0=values)
    np.testing.assert_array_equal(short, long[:, :, :20])


def test_every_operator_has_its_own_input() -> None:
    fed = feed_noise(_random(*["RandomNormalLike"] * 12))
    names = noise_inputs([value.name for value in fed.graph.input])
    feeds = {f"n{i}": np.full(1, i, np.float32) for i in range(12)}
    assert len(names) == 12
    assert [y.item() for y in _run(fed, (1, 1, 1), **feeds)] == list(range(12))


def test_operators_that_no_output_depends_on_have_no_input() -> None:
    """Compressed graphs lack them, and could not be given their noise."""
    graph = _random(*["RandomNormalLike"] * 4, "Bernoulli", "RandomNormalLike")
    graph.graph.node[4].input[:] = ["x"]
    graph.graph.node.append(make_node("Neg", "y3", "z"))
    del graph.graph.output[3:5], graph.graph.output[0]
    fed = feed_noise(graph)
    assert len(noise_inputs([value.name for value in fed.graph.input])) == 3
    values = {f"n{i}": np.full(1, i, np.float32) for i in range(3)}
    assert [y.item() for y in _run(fed, (1, 1, 1), **values)] == [0, 1, 2]


def test_operators_that_a_body_does_not_read_have_no_input() -> None:
    nodes = [make_node("RandomNormalLike", "x", name) for name in ("idle", "noise")]
    body = make_body(nodes, {}, {"noise": None})
    graph = _random()
    graph.graph.node.append(make_node("If", "c", "z", then_branch=body, else_branch=body))
    graph.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    names = [value.name for value in feed_noise(graph).graph.input]
    assert len(noise_inputs(names)) == 3
    del graph.graph.output[1]
    names = [value.name for value in feed_noise(graph).graph.input]
    assert len(noise_inputs(names)) == 1


def test_original_is_not_changed() -> None:
    graph = _random()
    before = graph.SerializeToString()
    feed_noise(graph)
    assert graph.SerializeToString() == before


def test_graph_without_noise_stays_as_it_is() -> None:
    graph = _random("Identity")
    graph.graph.node[0].input.append("x")
    assert feed_noise(graph) == graph


@pytest.mark.parametrize("shape", [(), (5,), (2, 7), (1, 3, 4), (2, 3, 4, 5), (1, 0, 3)])
@pytest.mark.parametrize("opset", [13, 14])
def test_any_rank_is_filled_along_its_last_axis(shape: tuple[int, ...], opset: int) -> None:
    """Against numpy; a tensor without values stays one from where the operators allow that."""
    if opset < 14 and 0 in shape:
        pytest.skip("Reshape takes no zeros before version 14")
    graph = _random()
    graph.graph.input[0].type.tensor_type.ClearField("shape")
    graph.opset_import[0].version = opset
    values = np.arange(7, dtype=np.float32)
    (found,) = _run(feed_noise(graph), shape, n0=values)
    flat = np.resize(values, int(np.prod(shape)))
    if len(shape) > 2:
        inner = shape[1:-1]
        flat = np.moveaxis(flat.reshape(shape[0], shape[-1], *inner), 1, -1)
    np.testing.assert_array_equal(found, flat.reshape(shape))


@pytest.mark.parametrize("operator", ["RandomUniformLike", "RandomUniform"])
def test_uniform_values_are_those_of_the_normal_distribution_function(operator: str) -> None:
    own = {} if operator.endswith("Like") else {"shape": [1, 2, 500]}
    fed = feed_noise(_random(operator, low=-2.0, high=6.0, **own))
    values = draw_noise(["tts_compress.noise.0"], seed=(1,))["tts_compress.noise.0"]
    (found,) = _run(fed, (1, 2, 500), n0=values)
    wanted = [-2 + 8 * NormalDist().cdf(float(value)) for value in values[:1000]]
    np.testing.assert_allclose(found.transpose(0, 2, 1).ravel(), wanted, atol=1e-5)
    every = _run(fed, (1, 2, 500), n0=np.sort(values)[-1000:])[0]
    assert every.max() < 6
    assert _run(fed, (1, 2, 500), n0=np.zeros(1, np.float32))[0].ravel() == pytest.approx(2.0)


def test_shape_and_type_that_an_operator_states_are_kept() -> None:
    fed = feed_noise(_random("RandomNormal", shape=[2, 3], dtype=TensorProto.DOUBLE))
    (found,) = _run(fed, (1, 1, 1), n0=np.arange(6, dtype=np.float32))
    assert found.dtype == np.float64
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("opset", [13, 15])
def test_operator_without_a_type_has_that_of_its_input(opset: int) -> None:
    graph = _random()
    graph.opset_import[0].version = opset
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    session = open_session(feed_noise(graph), "test")
    feeds = {"x": np.zeros((1, 2, 3)), "tts_compress.noise.0": np.ones(1, np.float32)}
    assert session.run(None, feeds)[0].dtype == np.float64


def test_inputs_do_not_depend_on_the_order_of_operators() -> None:
    """A compressed copy lists independent operators in another order than the original."""
    like = [make_node("RandomNormalLike", "x", f"/{n}/Random") for n in "abc"]
    add = make_node("Sum", "/a/Random /b/Random", "sum")
    last = make_node("RandomNormalLike", "sum", "/Random")
    outputs = dict.fromkeys(("/a/Random", "/b/Random", "/c/Random", "/Random"))
    noise = {f"n{i}": np.full(1, i, np.float32) for i in range(4)}
    for order in ([*like, add, last], [like[1], like[0], add, last, like[2]]):
        found = _run(
            feed_noise(make_model(order, {"x": ["b", "c", "t"]}, outputs)), (1, 1, 1), **noise
        )
        assert [value.item() for value in found] == [0, 1, 2, 3]


def _in_loop(body_nodes: list[onnx.NodeProto], opset: int = 17) -> onnx.ModelProto:
    """Build a graph that adds a random step to `x` in each of four iterations."""
    whole, logical = TensorProto.INT64, TensorProto.BOOL
    body = make_body(
        [*body_nodes, make_node("Identity", "go_in", "go")],
        {"step": (whole, []), "go_in": (logical, []), "sum_in": None},
        {"go": (logical, []), "sum": None, "drawn": None},
    )
    loop = make_node("Loop", "count - x", "y steps", "/loop/Loop", body=body)
    return make_model(
        [loop], {"x": ["b", "c", "t"]}, {"steps": None}, {"count": np.array(4)}, opset=opset
    )


_ADD = make_node("Add", "sum_in drawn", "sum")
_PASS = make_node("Identity", "drawn", "sum")


def test_each_iteration_of_a_loop_reads_on() -> None:
    draw = make_node("RandomNormalLike", "sum_in", "drawn", "/loop/Random")
    fed = feed_noise(_in_loop([draw, _ADD]))
    (found,) = _run(fed, (1, 2, 3), n0=np.arange(20, dtype=np.float32))
    wanted = np.resize(np.arange(20), 24).reshape(4, 1, 3, 2).transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(found, wanted)


def test_a_loop_within_a_loop_reads_apart_in_each_iteration_of_both() -> None:
    whole: Any = (TensorProto.INT64, [])
    logical: Any = (TensorProto.BOOL, [])
    nodes = [
        make_node("Identity", "more", "on"),
        make_node("RandomNormalLike", "part", "noise"),
        make_node("Add", "part noise", "added"),
    ]
    inputs = {"i": whole, "more": logical, "part": None}
    body = make_body(nodes, inputs, {"on": logical, "added": None})
    around = [make_node("Loop", "count - sum_in", "drawn", body=body), _PASS]
    fed = feed_noise(_in_loop(around))
    (found,) = _run(fed, (1, 1, 1), n0=np.arange(30_000, dtype=np.float32))
    # Four iterations of the inner loop follow each other, those of the outer one are far apart.
    assert np.diff(found.ravel(), prepend=0).tolist() == [6 + 4 * 7_919 * i for i in range(4)]


def test_branch_in_a_loop_is_fed_beside_the_loop_itself() -> None:
    """The branch taken adds what the loop draws to noise of its own."""

    def branch(kind: str, name: str) -> onnx.GraphProto:
        nodes = [
            make_node(kind, "sum_in", f"{name}.own"),
            make_node("Add", f"{name}.own outer", name),
        ]
        return make_body(nodes, {}, {name: None})

    nodes = [
        make_node("RandomNormalLike", "sum_in", "outer"),
        make_node(
            "If",
            "go_in",
            "drawn",
            then_branch=branch("RandomUniformLike", "a"),
            else_branch=branch("RandomNormalLike", "b"),
        ),
        _ADD,
    ]
    fed = feed_noise(_in_loop(nodes))
    names = noise_inputs([value.name for value in fed.graph.input])
    assert len(names) == 3
    assert not [n for n in _all_nodes(fed.graph) if n.op_type.startswith("Random")]
    noise = {"n0": np.zeros(1), "n1": np.full(1, 9.0), "n2": np.arange(4) * 10.0}
    noise = {name: value.astype(np.float32) for name, value in noise.items()}
    (found,) = _run(fed, (1, 1, 1), **noise)
    assert found.ravel().tolist() == [0.5, 10.5, 20.5, 30.5]


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [b for n in graph.node for a in n.attribute for b in (a.g, *a.graphs) if b.node]
    return [*graph.node, *(node for body in inner for node in _all_nodes(body))]


def test_noise_of_a_local_function_is_fed() -> None:
    draw = make_node("RandomNormalLike", "i", "o")
    opset = helper.make_opsetid("", 15)
    function = helper.make_function("own", "Jitter", ["i"], ["o"], [draw], [opset])
    jitter = make_node("Jitter", "x", "y", domain="own")
    model = make_model([jitter], {"x": ["t"]}, {"y": ["t"]}, domains=("own",))
    model.functions.append(function)
    (found,) = _run(feed_noise(model), (2,), n0=np.array([3.0, 4.0], np.float32))
    assert found.tolist() == [3, 4]


@pytest.mark.parametrize("operator", ["Bernoulli", "Multinomial"])
def test_random_choices_are_refused_by_name(operator: str) -> None:
    draw = make_node(operator, "sum_in", "drawn", "/loop/choice")
    with pytest.raises(ModelError, match=f"with {operator} '/loop/choice'.*cannot be paired"):
        feed_noise(_in_loop([draw, _ADD]))


@pytest.mark.parametrize("training", ["train", "always"])
def test_dropout_that_trains_is_refused_by_name(training: str) -> None:
    model = make_model(
        [make_node("Dropout", f"x - {training}", "y0", "")],
        {"x": [2], "train": (TensorProto.BOOL, [])},
        {"y0": None},
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    with pytest.raises(ModelError, match="with Dropout 'y0'"):
        feed_noise(model)


def test_dropout_that_a_constant_keeps_from_training_is_not_random() -> None:
    """Exports that keep training's operators were refused as random; other zeros stay."""
    nodes = [make_node("Dropout", "x ratio never", "d"), make_node("Where", "never d zero", "y")]
    weights = {"ratio": np.array(0.5), "never": np.array(False), "zero": np.array(0.0)}
    model = make_model(nodes, {"x": [2]}, {"y": None}, weights)
    assert [len(node.input) for node in feed_noise(model).graph.node] == [2, 3]
    held = make_node("Constant", "", "never", value=numpy_helper.from_array(np.array(False)))
    opsets, inputs = [helper.make_opsetid("", 15)], ["x", "ratio"]
    function = helper.make_function("own", "Drop", inputs, ["d"], [held, nodes[0]], opsets)
    model.functions.append(function)
    model.graph.node[0].CopyFrom(make_node("Drop", "x ratio", "d", domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert [len(node.input) for node in feed_noise(model).graph.node] == [0, 2, 3]


def test_noise_in_a_scan_is_refused_by_name() -> None:
    draw = make_node("RandomNormalLike", "frame", "drawn", "/scan/Random")
    body = make_body([draw], {"frame": None}, {"drawn": None})
    scan = make_node("Scan", "x", "y", body=body, num_scan_inputs=1)
    model = make_model([scan], {"x": ["t"]}, {"y": ["t"]})
    with pytest.raises(ModelError, match="'/scan/Random' inside a Scan"):
        feed_noise(model)


def test_same_seed_draws_the_same_and_another_draws_another() -> None:
    names = [f"tts_compress.noise.{i}" for i in (0, 1, 10, 2)]
    first, again = draw_noise(["input", *names], seed=(3, 0)), draw_noise(names, seed=(3, 0))
    assert list(first) == [f"tts_compress.noise.{i}" for i in (0, 1, 2, 10)]
    for name in names:
        np.testing.assert_array_equal(first[name], again[name])
        assert first[name].shape == (NOISE_LENGTH,)
        assert first[name].dtype == np.float32
        assert abs(first[name].mean()) < 0.01
        assert abs(first[name].std() - 1) < 0.01
    drawn = [first[names[0]], first[names[1]], draw_noise(names, seed=(4, 0))[names[0]]]
    drawn += [draw_noise(names, seed=(3, 1))[names[0]]]
    correlation = np.corrcoef(drawn) - np.eye(4)
    assert np.abs(correlation).max() < 0.02


def test_no_seed_means_zeros() -> None:
    assert not draw_noise(["tts_compress.noise.0"], seed=None)["tts_compress.noise.0"].any()
