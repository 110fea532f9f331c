"""Windows of operators, against what really changes in an output when an input is changed."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import make_model, make_node
from tests.measures import graph_bytes
from tts_compress.onnx import receptive
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.receptive import observe_shapes, walk
from tts_compress.onnx.session import open_session

_CHANNELS, _LENGTHS = 4, (24, 36)


def _array(*values: int) -> Any:
    return np.array(values, np.int64)


def _weight(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


_SCALES = np.array([1.0, 1.0, 3.0], np.float32)
_ROI = np.array([], np.float32)
LOCAL: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "conv": ("Conv", [_weight(4, 4, 3)], {"pads": [1, 1]}),
    "dilated": ("Conv", [_weight(4, 4, 3)], {"dilations": [5], "pads": [5, 5]}),
    "strided": ("Conv", [_weight(4, 4, 5)], {"strides": [3], "pads": [2, 2]}),
    "causal": ("Conv", [_weight(4, 4, 4)], {"pads": [3, 0]}),
    "up": ("ConvTranspose", [_weight(4, 4, 8)], {"strides": [4], "pads": [2, 2]}),
    "up-odd": (
        "ConvTranspose",
        [_weight(4, 4, 7)],
        {"strides": [3], "pads": [2, 2], "output_padding": [1]},
    ),
    "up-dilated": ("ConvTranspose", [_weight(4, 4, 3)], {"strides": [2], "dilations": [2]}),
    "pool": ("AveragePool", [], {"kernel_shape": [4], "strides": [2]}),
    "nearest": ("Resize", [_ROI, _SCALES], {"coordinate_transformation_mode": "asymmetric"}),
    "nearest-floor": (
        "Resize",
        [_ROI, _SCALES],
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "linear": ("Resize", [_ROI, _SCALES], {"mode": "linear"}),
    "zeros": ("Pad", [_array(0, 0, 5, 0, 0, 2)], {}),
    "reflected": ("Pad", [_array(0, 0, 3, 0, 0, 4)], {"mode": "reflect"}),
    "edged": ("Pad", [_array(0, 0, 3, 0, 0, 4)], {"mode": "edge"}),
    "cropped": ("Pad", [_array(0, 0, -2, 0, 0, -3)], {}),
    "slice": ("Slice", [_array(3), _array(-2), _array(2)], {}),
    "begin": ("Slice", [_array(3), _array(2**31 - 1), _array(2)], {}),
    "norm": ("LpNormalization", [], {"axis": 1}),
    "pairs of moments": ("Reshape", [_array(1, 4, -1, 2)], {}),
    "sum of channels": ("ReduceSum", [_array(1)], {}),
    "mean of channels": ("ReduceMean", [], {"axes": [1]}),
    "sums along channels": ("CumSum", [_array(1)[0]], {}),
    "first of a batch": ("Gather", [_array(0)], {}),
    "two channels": ("Gather", [_array(2, 0)], {"axis": 1}),
}
WHOLE: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "softmax over time": ("Softmax", [], {"axis": 2}),
    "sum over time": ("CumSum", [_array(2)[0]], {}),
    "norm of channels and time": ("LayerNormalization", [_weight(1)], {"axis": 1}),
    "channels joined": ("Reshape", [_array(1, 1, -1)], {}),
    "instance norm": ("InstanceNormalization", [np.ones(4, np.float32)] * 2, {}),
    "same": ("Conv", [_weight(4, 4, 4)], {"auto_pad": "SAME_LOWER"}),
    "cut to a length": ("Slice", [_array(3), _array(100), _array(2)], {}),
    "backwards": ("Slice", [_array(-1), _array(-99), _array(2), _array(-1)], {}),
    "product over time": ("MatMul", [_weight(24, 24)], {}),
}


def _graph(operator: str, others: list[Any], attributes: dict[str, Any]) -> onnx.ModelProto:
    weights = {f"c{number}": value for number, value in enumerate(others)}
    node = make_node(operator, " ".join(["x", *weights]), "y", "under-test", **attributes)
    shape = [1, _CHANNELS, 24 if operator == "MatMul" else "time"]
    return make_model([node], {"x": shape}, {"y": None}, weights, opset=17)


def _call(length: int) -> dict[str, Any]:
    values = np.random.default_rng(length).standard_normal((1, _CHANNELS, length))
    return {"x": values.astype(np.float32)}


@pytest.mark.parametrize("name", LOCAL)
def test_an_interval_is_made_of_its_window_and_of_no_less(name: str) -> None:
    model = _graph(*LOCAL[name])
    field = walk(Graph(model), observe_shapes(model, [_call(n) for n in _LENGTHS], name), ["y"])
    assert not field.end
    ((source, window),) = field.links["y"]
    assert source == "x"
    session, call = open_session(model, name), _call(_LENGTHS[1])
    before = session.run(None, call)[0]
    reads = np.zeros((before.shape[2], _LENGTHS[1]), bool)  # moments of the output, of the input
    for moment in range(_LENGTHS[1]):
        changed = call["x"].copy()
        changed[:, :, moment] += 1.0
        after = session.run(None, {"x": changed})[0]
        others = (0, 1, *range(3, after.ndim))
        reads[:, moment] = np.abs(after - before).max(axis=others) > 0.0
    for first in range(before.shape[2] - 2):
        seen = np.flatnonzero(reads[first : first + 3].any(axis=0))
        if not len(seen):  # zeros are read, before the begin or behind the end
            continue
        low, high = window.reads(first, first + 2)
        assert low <= seen.min()
        assert seen.max() <= high
        # A mirror and a curve reach as far at the ends, and less within.
        is_within = 8 <= first < before.shape[2] - 10
        if is_within and name not in {"reflected", "edged", "linear"}:
            assert seen.min() - low <= 1
            assert high - seen.max() <= 1


@pytest.mark.parametrize("name", WHOLE)
def test_what_reads_the_whole_time_ends_the_walk_by_name(name: str) -> None:
    model = _graph(*WHOLE[name])
    calls = [_call(24), _call(24 if name.startswith("product") else 36)]
    field = walk(Graph(model), observe_shapes(model, calls, name), ["y"])
    if name.startswith("product"):
        assert field.axis("x") is None, "it takes one length only"
    else:
        assert "under-test" in field.end


@pytest.mark.parametrize(("source", "axis"), [("table", 0), ("x", 2)])
def test_each_moment_may_look_up_a_row_and_no_other_moment(source: str, axis: int) -> None:
    nodes = [
        make_node("ReduceMax", "x", "loudest", axes=[0, 1], keepdims=0),
        make_node("Cast", "loudest", "numbers", to=TensorProto.INT64),
        make_node("Gather", f"{source} numbers", "y", "under-test", axis=axis),
    ]
    shapes = {"x": [1, _CHANNELS, "time"]}
    model = make_model(nodes, shapes, {"y": None}, {"table": _weight(9, 2)})
    calls: list[dict[str, Any]] = [
        {"x": np.ones((1, _CHANNELS, length), np.float32)} for length in _LENGTHS
    ]
    field = walk(Graph(model), observe_shapes(model, calls, "a table"), ["y"])
    assert ("under-test" in field.end) == (source == "x")


def test_what_has_other_axes_in_each_call_ends_the_walk_by_name() -> None:
    model = _graph("Mul", [], {})
    model.graph.node[0].input.append("factor")
    model.graph.input.append(helper.make_tensor_value_info("factor", TensorProto.FLOAT, None))
    factors = (_weight(1), _weight(4, 1))
    calls = [_call(n) | {"factor": factor} for n, factor in zip(_LENGTHS, factors, strict=True)]
    field = walk(Graph(model), observe_shapes(model, calls, "gain"), ["y"])
    assert "under-test" in field.end
    assert "reads what has no shape" in field.end


def test_a_product_whose_input_is_rounded_by_its_own_range_ends_the_walk() -> None:
    """It has one range for all time, as `DynamicQuantizeLinear` has."""
    nodes = [
        make_node("Transpose", "x", "turned", perm=[0, 2, 1]),
        make_node("DynamicQuantizeMatMul", "turned w step", "y", domain="com.microsoft"),
    ]
    weights = {"w": np.ones((4, 4), np.int8), "step": np.ones(1)}
    shapes = {"x": [1, _CHANNELS, "time"]}
    model = make_model(nodes, shapes, {"y": None}, weights, domains=["com.microsoft"])
    calls = [_call(length) for length in _LENGTHS]
    assert (
        "is not local" in walk(Graph(model), observe_shapes(model, calls, "a product"), ["y"]).end
    )


def test_shapes_are_observed_without_keeping_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty tensors of 4 MB, all of which were kept, in a process of its own."""
    saved = tmp_path / "watched.onnx"

    def opened(model: onnx.ModelProto, spec: str, **options: Any) -> Any:
        onnx.save(model, saved)
        return open_session(model, spec, **options)

    monkeypatch.setattr(receptive, "open_session", opened)
    nodes = [make_node("Sin", f"x{n}", f"x{n + 1}") for n in range(40)]
    model = make_model(nodes, {"x0": ["n"]}, {"x40": ["n"]})
    calls: Any = [{"x0": np.zeros(size, np.float32)} for size in (4, 6)]
    assert observe_shapes(model, calls, "m")["x40"] == ((4,), (6,))
    np.savez(tmp_path / "feeds.npz", x0=np.zeros(1_000_000, np.float32))
    assert graph_bytes(saved, tmp_path / "feeds.npz") < 60e6
