"""Every operator in torch agrees with onnxruntime, odd attributes and old versions included."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node, run_model

torch = pytest.importorskip("torch")

from tts_compress.errors import QuantizationError  # noqa: E402
from tts_compress.qat.graph.operators import OPERATORS, find_operator  # noqa: E402

_SEED = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray[Any, Any]:
    return _SEED.normal(size=shape).astype(np.float32)


def _whole(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One node, and what it is given."""

    operator: str
    inputs: tuple[Any, ...]
    """Arrays; None for an input that is left out."""

    attributes: dict[str, Any]
    opset: int
    outputs: int

    def node(self) -> onnx.NodeProto:
        """Return the node."""
        inputs = " ".join("-" if x is None else f"i{n}" for n, x in enumerate(self.inputs))
        outputs = " ".join(f"o{n}" for n in range(self.outputs))
        return make_node(self.operator, inputs, outputs, "/net/one", **self.attributes)

    def expected(self) -> list[np.ndarray[Any, Any]]:
        """Return onnxruntime's outputs."""
        arrays = {f"i{n}": np.asarray(x) for n, x in enumerate(self.inputs) if x is not None}
        inputs: dict[str, Any] = {
            name: (helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in arrays.items()
        }
        outputs = {f"o{n}": None for n in range(self.outputs)}
        model = make_model([self.node()], inputs, outputs, opset=self.opset)
        for value in model.graph.output:
            value.ClearField("type")
        return run_model(model, arrays)


def _case(
    operator: str, *inputs: Any, opset: int = 17, outputs: int = 1, **attributes: Any
) -> Case:
    return Case(operator, inputs, attributes, opset, outputs)


_X = _normal(2, 4, 11)
_W = _normal(6, 4, 3)
_POSITIVE = np.abs(_normal(2, 3)) + 0.1
_TABLE = _normal(5, 3, 2)

_SINGLE = ["Abs", "Atan", "Ceil", "Cos", "Erf", "Exp", "Floor", "Identity", "Neg", "Relu", "Round"]
_SINGLE += ["Sigmoid", "Sign", "Sin", "Softplus", "Tanh"]
_PAIRS = ["Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Sub"]
_REDUCTIONS = ["ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]

_CASES = [
    *(_case(name, 3 * _X) for name in _SINGLE),
    *(_case(name, _POSITIVE) for name in ("Log", "Reciprocal", "Sqrt")),
    *(_case(name, _X, _normal(4, 1)) for name in _PAIRS),
    _case("Div", _whole(-7, 7, 8), _whole(2, 2, -3)),
    _case("Pow", _POSITIVE, np.array(2, np.int64)),
    _case("Pow", _POSITIVE, _normal(3)),
    *(_case(n, _X > 0, _X > 1) for n in ("And", "Or")),
    _case("Not", _X > 0),
    *(_case(n, _X, _normal(11), _normal(4, 1)) for n in ("Max", "Min", "Sum")),
    _case("Cast", 3 * _X, to=TensorProto.INT64),
    _case("CastLike", 3 * _X, _whole(1)),
    _case("Cast", _X > 0, to=TensorProto.FLOAT),
    _case("Clip", _X, np.float32(-0.5), np.float32(0.5)),
    _case("Clip", _X, None, np.float32(0.5)),
    _case("Elu", _X, alpha=0.7),
    _case("LeakyRelu", _X),
    _case("LeakyRelu", _X, alpha=0.3),
    _case("PRelu", _X, _normal(4, 1)),
    _case("Gelu", _X, opset=20),
    _case("IsNaN", np.where(_X > 0, np.nan, _X)),
    _case("Einsum", _X, _normal(6, 4), equation="bct,oc->bot"),
    _case("InstanceNormalization", _X, _normal(4), _normal(4)),
    _case("InstanceNormalization", _X, _normal(4), _normal(4), epsilon=0.1),
    *(
        _case(
            "Resize",
            _X,
            None,
            np.array([1, 1, factor], np.float32),
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )
        for factor in (2, 2.5, 300)
    ),
    _case("Gelu", _X, opset=20, approximate="tanh"),
    _case("Where", _X > 0, _X, np.float32(7)),
    # Convolutions
    _case("Conv", _X, _W),
    _case("Conv", _X, _W, _normal(6), pads=[2, 1], dilations=[2], strides=[2]),
    _case("Conv", _X, _normal(6, 2, 3), group=2, pads=[1, 1]),
    *(
        _case("Conv", _X, w, auto_pad=pad, strides=[step])
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for step, w in ((1, _normal(6, 4, 4)), (2, _normal(6, 4, 4)))
    ),
    _case("Conv", _normal(1, 2, 5, 7), _normal(3, 2, 3, 2), pads=[1, 0, 2, 1], strides=[2, 1]),
    _case("ConvTranspose", _X, _normal(4, 6, 4), _normal(6)),
    _case("ConvTranspose", _X, _normal(4, 6, 8), strides=[4], pads=[2, 2]),
    _case(
        "ConvTranspose",
        _X,
        _normal(4, 3, 5),
        _normal(6),
        strides=[3],
        pads=[0, 2],
        output_padding=[2],
        group=2,
    ),
    _case("ConvTranspose", _X, _normal(4, 3, 3), strides=[2], dilations=[2], pads=[1, 1]),
    *(
        _case("ConvTranspose", _X, _normal(4, 3, 5), strides=[2], auto_pad=pad)
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    _case("ConvTranspose", _X, _normal(4, 3, 5), strides=[2], output_shape=[22]),
    # Products
    _case("MatMul", _normal(2, 3, 4), _normal(4, 5)),
    _case("Gemm", _normal(3, 4), _normal(4, 5), _normal(5)),
    _case(
        "Gemm", _normal(4, 3), _normal(5, 4), _normal(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0
    ),
    _case(
        "BatchNormalization",
        _normal(2, 4, 6),
        *(_normal(4) for _ in range(3)),
        _normal(4) ** 2,
        epsilon=1e-3,
    ),
    _case("LayerNormalization", _X, _normal(11), _normal(11)),
    _case("LayerNormalization", _X, _normal(4, 11), axis=1, epsilon=0.1),
    # Reductions
    *(_case(n, _X, axes=[-1, 0]) for n in _REDUCTIONS[:-1]),
    *(_case(n, _X, keepdims=0) for n in _REDUCTIONS),
    *(_case(n, _X, _whole(1), opset=18) for n in _REDUCTIONS),
    _case("ReduceSum", _X, noop_with_empty_axes=1),
    _case("ReduceMax", _whole([3, 9], [8, 1]), keepdims=0),
    _case("Softmax", _X),
    _case("Softmax", _X, axis=1),
    _case("CumSum", _X, np.array(-1, np.int64)),
    _case("CumSum", _X, np.array(1, np.int64), exclusive=1, reverse=1),
    # Shapes
    _case("Concat", _X, _normal(2, 1, 11), axis=-2),
    _case("Dropout", _X),
    _case("Expand", _normal(4, 1), _whole(2, 1, 3)),
    _case("Flatten", _X, axis=2),
    _case("Flatten", _X, axis=-1),
    *(
        _case("Pad", _X, _whole(0, 0, 2, 0, 1, 3), mode=mode)
        for mode in ("constant", "reflect", "edge")
    ),
    _case("Pad", _X, _whole(0, 1, -2, 0, 0, 2), np.float32(7)),
    _case("Pad", _X, _whole(1, 2), None, _whole(-1), opset=18),
    _case("Reshape", _X, _whole(0, -1, 22)),
    _case("Reshape", _normal(0, 3), _whole(3, 0), allowzero=1),
    _case("Shape", _X),
    _case("Shape", _X, start=-2, end=-1),
    _case("Size", _X),
    _case("Slice", _X, _whole(-9, 1), _whole(-1, 9), _whole(2, 1)),
    _case("Slice", _X, _whole(-1), _whole(-(2**63)), _whole(2), _whole(-1)),
    _case("Slice", _X, _whole(9), _whole(1), _whole(-1), _whole(-3)),
    _case("Slice", _X, _whole(1), _whole(2**63 - 1), _whole(2), _whole(4)),
    _case("Slice", _X, _whole(5), _whole(2), _whole(2)),
    _case("Split", _X, _whole(3, 8), outputs=2, axis=2),
    _case("Split", _X, outputs=2, axis=1),
    _case("Split", _X, opset=18, outputs=3, axis=2, num_outputs=3),
    _case("Squeeze", _normal(1, 3, 1)),
    _case("Squeeze", _normal(1, 3, 1), _whole(-1)),
    _case("Tile", _X, _whole(1, 2, 3)),
    _case("Transpose", _X),
    _case("Transpose", _X, perm=[0, 2, 1]),
    _case("Unsqueeze", _normal(3, 4), _whole(-1, 0)),
    # Indices
    _case("Constant", value=numpy_helper.from_array(_normal(2, 3))),
    _case("ConstantOfShape", _whole(2, 3)),
    _case("ConstantOfShape", _whole(4), value=numpy_helper.from_array(_whole(7))),
    _case("Gather", _TABLE, _whole([0, -1], [4, 2])),
    _case("Gather", _TABLE, np.array(-2, np.int64), axis=1),
    _case("GatherElements", _TABLE, _whole([[0, 1]], [[-1, 0]]), axis=2),
    _case("GatherND", _TABLE, _whole([0, 1], [-1, 2])),
    _case("NonZero", _X > 1),
    _case("Range", np.float32(1), np.float32(4.2), np.float32(0.5)),
    _case("Range", np.int64(5), np.int64(-4), np.int64(-2)),
    _case("ScatterElements", _TABLE, _whole([[0, 1]], [[-1, 0]]), _normal(2, 1, 2), axis=2),
    _case("ScatterND", _TABLE, _whole([0, 1], [-1, 2]), _normal(2, 2)),
    _case("ScatterND", _TABLE, _whole([3, 1], [3, 1]), _normal(2, 2), reduction="add"),
]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: f"{case.operator}-{case.attributes}")
def test_answer_is_that_of_onnxruntime(case: Case) -> None:
    given = [None if x is None else torch.from_numpy(np.array(x)) for x in case.inputs]
    made = find_operator(case.node())(*given)
    expected = case.expected()
    assert len(made) == len(expected)
    for found, wanted in zip(made, expected, strict=True):
        assert found.numpy().dtype == wanted.dtype
        assert tuple(found.shape) == wanted.shape
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=2e-6)


def test_every_operator_was_compared() -> None:
    assert {case.operator for case in _CASES} == set(OPERATORS)


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (make_node("Loop", "n", "y", "/net/again"), "operator Loop of node '/net/again'"),
        (make_node("RandomNormalLike", "x", "y", ""), "RandomNormalLike of node 'y'"),
        (make_node("QLinearAdd", "x", "y", domain="com.microsoft"), r"com\.microsoft\.QLinearAdd"),
    ],
)
def test_unknown_operator_is_named(node: onnx.NodeProto, problem: str) -> None:
    with pytest.raises(QuantizationError, match=problem):
        find_operator(node)


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (_case("Cast", _X, to=TensorProto.STRING), "STRING"),
        (_case("GatherND", _X, _whole([0]), batch_dims=1), "batch"),
        (_case("LayerNormalization", _X, _normal(11), outputs=2), "also returns mean"),
        (
            _case("ScatterElements", _TABLE, _whole([[0]]), _normal(1, 1, 1), reduction="mul"),
            "joins values by 'mul'",
        ),
        (
            _case("ScatterND", _TABLE, _whole([0]), _normal(1, 3, 2), reduction="max"),
            "joins values by 'max'",
        ),
    ],
)
def test_unknown_meaning_is_refused_by_node(case: Case, problem: str) -> None:
    given = [torch.from_numpy(np.array(x)) for x in case.inputs]
    with pytest.raises(QuantizationError, match=rf"'/net/one'.*{problem}"):
        find_operator(case.node())(*given)


def test_gradients_flow_where_the_graph_does() -> None:
    weight = torch.from_numpy(_W.copy()).requires_grad_()
    node = _case("Conv", _X, _W, pads=[1, 0]).node()
    (made,) = find_operator(node)(torch.from_numpy(_X), weight)
    made.square().sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert float(weight.grad.abs().sum()) > 0
