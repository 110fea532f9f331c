"""Codes of 8 and 12 bits that GPTQ chooses, against the same graph rounded to nearest."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tests.onnx.conversion import make_calls, prepared
from tests.rules import make_recipe
from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums, round_weight
from tts_compress.onnx.graph import Graph, copy_model, with_outputs
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import (
    Conversion,
    Observed,
    convert,
    count_operators,
    with_chosen_codes,
)
from tts_compress.onnx.quantize.decisions import Decision, count_decisions
from tts_compress.onnx.session import Feeds, open_session
from tts_compress.onnx.weight_codes import Chosen, WholeCodes
from tts_compress.progress import Silent
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Calibration

_WEIGHTS = {"first": (24, 17, 3), "second": (32, 24, 4), "up": (32, 20, 8), "matrix": (20, 24)}
_CASES: dict[str, tuple[str, str, set[str]]] = {
    "weight-only": ("none", "qdq", {"a", "c", "d", "y"}),
    "twelve bits": ("none", "qdq", {"a", "c", "d", "y"}),
    "dynamic": ("dynamic", "qdq", {"a", "c", "y"}),
    "portable": ("static", "qdq", {"a", "c"}),
    "integers": ("static", "qoperator", {"a", "c", "d"}),
    "sixteen bits": ("static", "qdq16", {"a", "c"}),
}
"""Activations, form, and the operators whose weights are rounded."""


@pytest.fixture
def network() -> onnx.ModelProto:
    """Two convolutions, upsampling and a product, `[1, 17, T]` in."""
    generator = np.random.default_rng(0)
    tensors = {name: generator.normal(0, 0.2, shape) for name, shape in _WEIGHTS.items()}
    tensors |= {f"{name}.bias": generator.normal(0, 0.2, 24) for name in ("first", "up")}
    tensors["up.bias"] = tensors["up.bias"][:20]
    nodes = [
        make_node("Conv", "x first first.bias", "a", "/net/first/Conv", pads=[1, 1]),
        make_node("LeakyRelu", "a", "b", "/net/LeakyRelu", alpha=0.1),
        make_node("Conv", "b second", "c", "/net/second/Conv", pads=[3, 3], dilations=[2]),
        make_node("ConvTranspose", "c up up.bias", "d", "/net/up/CT", strides=[4], pads=[2, 2]),
        make_node("Transpose", "d", "e", "/net/Transpose", perm=[0, 2, 1]),
        make_node("MatMul", "e matrix", "y", "/net/matrix/MatMul"),
    ]
    return make_model(nodes, {"x": [1, 17, "t"]}, {"y": [1, "t2", 24]}, tensors)


def _signal(seed: int) -> Any:
    """Return channels that vary together, slowly, around values that are not zero."""
    generator, mixing = np.random.default_rng(seed), np.random.default_rng(99)
    slow = np.cumsum(generator.normal(size=(4, 200)), axis=1) / 8
    mixed = mixing.normal(size=(17, 4)) @ (slow - slow.mean(1, keepdims=True))
    noise = 0.1 * generator.normal(size=(17, 200))
    return (mixed + noise + mixing.normal(size=(17, 1)))[None].astype(np.float32)


_CALLS = make_calls(lambda seed: {"x": _signal(seed)})


def _conversion(network: onnx.ModelProto, case: str) -> Conversion:
    activations, form, _ = _CASES[case]
    algorithm = "rtn" if activations == "static" else "gptq"  # which only needs calibration then
    rule: dict[str, Any] = {"activations": activations, "algorithm": algorithm}
    if activations == "dynamic":
        rule["operators"] = ("Conv", "MatMul")
    elif activations == "static":
        rule["operators"] = ("Conv", "ConvTranspose") if form == "qoperator" else ("Conv",)
    recipe = make_recipe(rule, format=form, calibration=Calibration())
    conversion = prepared(network, recipe, _CALLS)
    assert not conversion.chosen
    if case == "twelve bits":  # which no recipe asks GPTQ for
        wide = (replace(d, weights=Weights.INT12) for d in conversion.decisions)
        conversion = replace(conversion, decisions=tuple(wide))
    return with_chosen_codes(conversion, _CALLS, Silent())


def _run(model: onnx.ModelProto, *outputs: str) -> list[Any]:
    # From the next level on, onnxruntime 1.31 multiplies products in its own 8-bit blocks.
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    made = with_outputs(model, outputs) if outputs else model
    session = open_session(made, "test", graph_optimization_level=level)
    return [session.run(list(outputs) or None, {"x": _signal(seed)}) for seed in (50, 51)]


@pytest.mark.parametrize("case", _CASES)
def test_codes_are_chosen_for_the_output(network: onnx.ModelProto, case: str) -> None:
    conversion, (activations, _, outputs) = _conversion(network, case), _CASES[case]
    assert conversion.chosen.keys() == outputs
    made = convert(conversion)
    onnx.checker.check_model(made) if case != "integers" else None
    assert count_operators(made) == count_decisions(conversion.decisions)
    nearest = convert(replace(conversion, chosen={}))
    assert len(made.SerializeToString()) < 1.02 * len(nearest.SerializeToString()) + 500
    wanted = np.stack([y for (y,) in _run(network)])
    found = [snr_db(wanted, np.stack([y for (y,) in _run(m)])) for m in (nearest, made)]
    # Where activations are rounded, too, theirs is most of the error.
    assert found[1] > found[0] + (3 if activations == "none" else 0)
    assert convert(conversion).SerializeToString() == made.SerializeToString()


def test_the_same_calibration_chooses_the_same_codes(network: onnx.ModelProto) -> None:
    made = [convert(_conversion(network, "integers")).SerializeToString() for _ in range(2)]
    assert made[0] == made[1]


def test_moments_are_taken_once(network: onnx.ModelProto) -> None:
    """Weights alone are chosen by what integers read, with no run, and as if observed anew."""
    integers, read = _conversion(network, "integers"), []

    def feeds() -> Iterator[Feeds]:
        for call in _CALLS.feeds():
            read.append(1)
            yield call

    def observe(*several: Sequence[Decision]) -> dict[str, Chosen]:
        observed = Observed(Graph(copy_model(integers.graph)), Silent())
        return [
            observed.find_codes(decisions, Calls(feeds, _CALLS.total)) for decisions in several
        ][-1]

    alone = [replace(decision, activations=Activations.NONE) for decision in integers.decisions]
    before, anew = observe(alone), len(read)
    after = observe(integers.decisions, alone)
    assert len(read) == 2 * anew
    assert before.keys() == after.keys() == {"a", "c", "d"}
    for output, codes in before.items():
        again = after[output]
        assert isinstance(codes, WholeCodes)
        assert isinstance(again, WholeCodes)
        np.testing.assert_array_equal(codes.codes, again.codes)


def _one_layer(
    shape: tuple[int, ...],
    calls: Calls,
    weights: Weights = Weights.INT8,
    *,
    has_bias: bool = False,
    dilation: int = 1,
) -> Conversion:
    """Return the conversion of a convolution by itself, with its codes chosen."""
    random = np.random.default_rng(2)
    tensors = {"w": random.normal(0, 0.2, shape)}
    tensors |= {"b": random.normal(size=shape[0])} if has_bias else {}
    inputs = " ".join(["x", *tensors])
    nodes = [make_node("Conv", inputs, "y", "/net/layer/Conv", dilations=[dilation])]
    model = make_model(nodes, {"x": ["n", shape[1], "t"]}, {"y": None}, tensors)
    recipe = make_recipe({"algorithm": "gptq"}, calibration=Calibration())
    conversion = prepared(model, recipe, calls)
    decisions = tuple(replace(d, weights=weights) for d in conversion.decisions)
    return with_chosen_codes(replace(conversion, decisions=decisions), calls, Silent())


def _differing(*conversions: Conversion) -> float:
    """Return the share of codes in which two conversions differ."""
    first, second = (conversion.chosen["y"].codes for conversion in conversions)
    return float(np.mean(first != second))


def test_taps_that_are_apart_are_chosen_by_frames_that_are() -> None:
    """A dilated convolution reads of doubled frames what a plain one reads in two calls."""
    repeated = make_calls(lambda seed: {"x": _signal(seed).repeat(2, 2)})
    twice = make_calls(lambda seed: {"x": _signal(seed // 2)}, 16)
    dilated, plain = (
        _one_layer((24, 17, 3), c, dilation=n) for c, n in ((repeated, 2), (twice, 1))
    )
    assert _differing(dilated, plain) < 0.02


@pytest.mark.parametrize("has_bias", [False, True])
def test_only_a_bias_makes_up_for_a_mean(*, has_bias: bool) -> None:
    louder = make_calls(lambda seed: {"x": _signal(seed) + 5})
    both = (_one_layer((24, 17, 3), calls, has_bias=has_bias) for calls in (_CALLS, louder))
    assert (_differing(*both) < 0.02) == has_bias


@pytest.mark.parametrize(("outputs", "chosen"), [(2, {"y"}), (3, set())])
def test_an_odd_number_of_twelve_bits_is_rounded_to_sixteen(outputs: int, chosen: set[str]) -> None:
    conversion = _one_layer((outputs, 17, 3), _CALLS, Weights.INT12)
    assert conversion.chosen.keys() == chosen
    before, after = (
        run_model(m, {"x": _signal(50)}) for m in (conversion.graph, convert(conversion))
    )
    assert snr_db(before[0], after[0]) > 55


def test_neighbours_stay_within_16_bits(network: onnx.ModelProto) -> None:
    """The first convolution has 17 inputs: each two that follow count, across taps, too."""
    generator = np.random.default_rng(5)
    graph = Graph(network)
    heavy = np.abs(generator.normal(0, 0.2, _WEIGHTS["first"])).astype(np.float32)
    graph.initializers["first"].CopyFrom(numpy_helper.from_array(heavy, "first"))
    for case in ("integers", "portable", "weight-only", "sixteen bits"):
        multiplied = case in {"integers", "portable"}
        found = _conversion(network, case).chosen["a"]
        assert isinstance(found, WholeCodes)
        sums = np.abs(neighbour_sums(found.codes.astype(int))).max()
        assert bool(sums <= PAIR_LIMIT) is multiplied
        scales = round_weight(heavy, 0, multiplied=multiplied)[1]
        np.testing.assert_array_equal(found.scales, scales)


def test_biases_keep_the_means_of_convolutions(network: onnx.ModelProto) -> None:
    conversion = _conversion(network, "weight-only")
    unshifted = {
        output: replace(codes, shift=None)
        for output, codes in conversion.chosen.items()
        if isinstance(codes, WholeCodes)
    }
    names = ("a", "d")
    wanted, plain, shifted = (
        [np.stack(values).mean(axis=(0, 1, 3)) for values in zip(*_run(model, *names), strict=True)]
        for model in (network, convert(replace(conversion, chosen=unshifted)), convert(conversion))
    )
    for want, before, after in zip(wanted, plain, shifted, strict=True):
        assert np.abs(after - want).mean() < 0.5 * np.abs(before - want).mean()


@pytest.mark.parametrize(
    ("inputs", "chosen"), [("e matrix", {"a", "c", "d"}), ("x times", {"a", "c", "d", "y"})]
)
def test_what_one_set_of_moments_does_not_fit_is_rounded_to_nearest(
    network: onnx.ModelProto, inputs: str, chosen: set[str]
) -> None:
    """Layers that share a weight read different inputs; what a convolution reads has its axis."""
    times = np.random.default_rng(0).normal(size=(200, 24)).astype(np.float32)
    network.graph.initializer.append(numpy_helper.from_array(times, "times"))
    network.graph.node.append(make_node("MatMul", inputs, "z", "/net/again/MatMul"))
    network.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    assert _conversion(network, "weight-only").chosen.keys() == chosen


@pytest.mark.parametrize(
    ("spread", "size"), [(0.0, 0), (0.0, 1), (1e-4, 1), (0.01, 1), (0.012, 1), (0.02, 1)]
)
def test_an_input_that_hardly_varies_leaves_little_to_choose_by(spread: float, size: int) -> None:
    """The style of a single recording: the rounding of its sums was no matrix to divide by.

    Of a layer that no call reached, all codes were zero, and the bias NaN.
    """
    style = np.random.default_rng(0).normal(0, 3, (1, 300, 1)).astype(np.float32)
    style = style.repeat(400, 2)[:size]
    noise = [spread * np.random.default_rng(call).normal(size=style.shape) for call in range(8)]
    calls = make_calls(lambda call: {"x": style + noise[call].astype(np.float32)})
    conversion = _one_layer((12, 300, 1), calls, has_bias=True)
    chosen, weight = conversion.chosen["y"], Graph(conversion.graph).value("w")
    assert isinstance(chosen, WholeCodes)
    assert chosen.shift is not None
    assert np.isfinite(chosen.shift).all()
    nearest = np.rint(weight / chosen.scales[:, None, None])
    differing = np.asarray(chosen.codes).reshape(nearest.shape) != nearest
    assert differing.mean() < (0.5 if spread > 0.001 else 1e-9)


def test_few_frames_are_not_fitted() -> None:
    """A text encoder has a frame for a symbol, and more inputs than symbols were observed."""
    mixing = np.random.default_rng(1).normal(size=(64, 8))

    def call(seed: int) -> Feeds:
        draw = np.random.default_rng(seed)
        values = mixing @ draw.normal(size=(8, 18)) + 3 * draw.normal(size=(64, 18))
        return {"x": np.maximum(values, 0)[None].astype(np.float32)}

    conversion = _one_layer((48, 64, 3), make_calls(call))
    other = [call(seed) for seed in range(100, 200)]
    rounded = replace(conversion, chosen={})
    wanted, nearest, chosen = (
        np.stack([open_session(model, "test").run(None, feeds)[0] for feeds in other])
        for model in (conversion.graph, convert(rounded), convert(conversion))
    )
    assert snr_db(wanted, chosen) > snr_db(wanted, nearest)


def test_products_of_vectors_are_rounded_to_nearest() -> None:
    """A vector has no frames to take moments of; onnxruntime refused the graph that looked."""
    weight = np.random.default_rng(0).normal(size=(64, 64)) / 8
    model = make_model([make_node("MatMul", "x w", "y")], {"x": [64]}, {"y": [64]}, {"w": weight})

    def call(seed: int) -> Feeds:
        return {"x": np.random.default_rng(seed).normal(size=64).astype(np.float32)}

    calls = make_calls(call)
    conversion = prepared(model, make_recipe({"weights": "int8"}), calls)
    assert with_chosen_codes(conversion, calls, Silent()).chosen == {}
