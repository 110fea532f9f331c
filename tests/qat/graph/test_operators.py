"""Every operator in torch agrees with onnxruntime, odd attributes and old versions included."""

from dataclasses import dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node, and what it is given."""

    operator: str
    inputs: tuple[Any, ...]
    """Arrays; None for an input that is left out."""

    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1

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


_X = _normal(2, 4, 11)
_W = _normal(6, 4, 3)
_POSITIVE = np.abs(_normal(2, 3)) + 0.1
_TABLE = _normal(5, 3, 2)

_SINGLE = ["Abs", "Atan", "Ceil", "Cos", "Erf", "Exp", "Floor", "Identity", "Neg", "Relu", "Round"]
_SINGLE += ["Sigmoid", "Sign", "Sin", "Softplus", "Tanh"]
_PAIRS = ["Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Sub"]
_REDUCTIONS = ["ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]

_CASES = [
    *(Case(operator=name, inputs=(3 * _X,)) for name in _SINGLE),
    *(Case(operator=name, inputs=(_POSITIVE,)) for name in ("Log", "Reciprocal", "Sqrt")),
    *(Case(operator=name, inputs=(_X, _normal(4, 1))) for name in _PAIRS),
    Case(operator="Div", inputs=(_whole(-7, 7, 8), _whole(2, 2, -3))),
    Case(operator="Pow", inputs=(_POSITIVE, np.array(2, np.int64))),
    Case(operator="Pow", inputs=(_POSITIVE, _normal(3))),
    *(Case(operator=n, inputs=(_X > 0, _X > 1)) for n in ("And", "Or")),
    Case(operator="Not", inputs=(_X > 0,)),
    *(Case(operator=n, inputs=(_X, _normal(11), _normal(4, 1))) for n in ("Max", "Min", "Sum")),
    Case(operator="Cast", inputs=(3 * _X,), attributes={"to": TensorProto.INT64}),
    Case(operator="CastLike", inputs=(3 * _X, _whole(1))),
    Case(operator="Cast", inputs=(_X > 0,), attributes={"to": TensorProto.FLOAT}),
    Case(operator="Clip", inputs=(_X, np.float32(-0.5), np.float32(0.5))),
    Case(operator="Clip", inputs=(_X, None, np.float32(0.5))),
    Case(operator="Elu", inputs=(_X,), attributes={"alpha": 0.7}),
    Case(operator="LeakyRelu", inputs=(_X,)),
    Case(operator="LeakyRelu", inputs=(_X,), attributes={"alpha": 0.3}),
    Case(operator="PRelu", inputs=(_X, _normal(4, 1))),
    Case(operator="Gelu", inputs=(_X,), opset=20),
    Case(operator="IsNaN", inputs=(np.where(_X > 0, np.nan, _X),)),
    Case(operator="Einsum", inputs=(_X, _normal(6, 4)), attributes={"equation": "bct,oc->bot"}),
    Case(operator="InstanceNormalization", inputs=(_X, _normal(4), _normal(4))),
    Case(
        operator="InstanceNormalization",
        inputs=(_X, _normal(4), _normal(4)),
        attributes={"epsilon": 0.1},
    ),
    *(
        Case(
            operator="Resize",
            inputs=(_X, None, np.array([1, 1, factor], np.float32)),
            attributes={
                "mode": "nearest",
                "nearest_mode": "floor",
                "coordinate_transformation_mode": "asymmetric",
            },
        )
        for factor in (2, 2.5, 300)
    ),
    Case(operator="Gelu", inputs=(_X,), attributes={"approximate": "tanh"}, opset=20),
    Case(operator="Where", inputs=(_X > 0, _X, np.float32(7))),
    # Convolutions
    Case(operator="Conv", inputs=(_X, _W)),
    Case(
        operator="Conv",
        inputs=(_X, _W, _normal(6)),
        attributes={"pads": [2, 1], "dilations": [2], "strides": [2]},
    ),
    Case(operator="Conv", inputs=(_X, _normal(6, 2, 3)), attributes={"group": 2, "pads": [1, 1]}),
    *(
        Case(operator="Conv", inputs=(_X, w), attributes={"auto_pad": pad, "strides": [step]})
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for step, w in ((1, _normal(6, 4, 4)), (2, _normal(6, 4, 4)))
    ),
    Case(
        operator="Conv",
        inputs=(_normal(1, 2, 5, 7), _normal(3, 2, 3, 2)),
        attributes={"pads": [1, 0, 2, 1], "strides": [2, 1]},
    ),
    Case(operator="ConvTranspose", inputs=(_X, _normal(4, 6, 4), _normal(6))),
    Case(
        operator="ConvTranspose",
        inputs=(_X, _normal(4, 6, 8)),
        attributes={"strides": [4], "pads": [2, 2]},
    ),
    Case(
        operator="ConvTranspose",
        inputs=(_X, _normal(4, 3, 5), _normal(6)),
        attributes={"strides": [3], "pads": [0, 2], "output_padding": [2], "group": 2},
    ),
    Case(
        operator="ConvTranspose",
        inputs=(_X, _normal(4, 3, 3)),
        attributes={"strides": [2], "dilations": [2], "pads": [1, 1]},
    ),
    *(
        Case(
            operator="ConvTranspose",
            inputs=(_X, _normal(4, 3, 5)),
            attributes={"strides": [2], "auto_pad": pad},
        )
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    Case(
        operator="ConvTranspose",
        inputs=(_X, _normal(4, 3, 5)),
        attributes={"strides": [2], "output_shape": [22]},
    ),
    # Products
    Case(operator="MatMul", inputs=(_normal(2, 3, 4), _normal(4, 5))),
    Case(operator="Gemm", inputs=(_normal(3, 4), _normal(4, 5), _normal(5))),
    Case(
        operator="Gemm",
        inputs=(_normal(4, 3), _normal(5, 4), _normal(3, 1)),
        attributes={"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
    ),
    Case(
        operator="BatchNormalization",
        inputs=(_normal(2, 4, 6), *(_normal(4) for _ in range(3)), _normal(4) ** 2),
        attributes={"epsilon": 1e-3},
    ),
    Case(operator="LayerNormalization", inputs=(_X, _normal(11), _normal(11))),
    Case(
        operator="LayerNormalization",
        inputs=(_X, _normal(4, 11)),
        attributes={"axis": 1, "epsilon": 0.1},
    ),
    # Reductions
    *(Case(operator=n, inputs=(_X,), attributes={"axes": [-1, 0]}) for n in _REDUCTIONS[:-1]),
    *(Case(operator=n, inputs=(_X,), attributes={"keepdims": 0}) for n in _REDUCTIONS),
    *(Case(operator=n, inputs=(_X, _whole(1)), opset=18) for n in _REDUCTIONS),
    Case(operator="ReduceSum", inputs=(_X,), attributes={"noop_with_empty_axes": 1}),
    Case(operator="ReduceMax", inputs=(_whole([3, 9], [8, 1]),), attributes={"keepdims": 0}),
    Case(operator="Softmax", inputs=(_X,)),
    Case(operator="Softmax", inputs=(_X,), attributes={"axis": 1}),
    Case(operator="CumSum", inputs=(_X, np.array(-1, np.int64))),
    Case(
        operator="CumSum",
        inputs=(_X, np.array(1, np.int64)),
        attributes={"exclusive": 1, "reverse": 1},
    ),
    # Shapes
    Case(operator="Concat", inputs=(_X, _normal(2, 1, 11)), attributes={"axis": -2}),
    Case(operator="Dropout", inputs=(_X,)),
    Case(operator="Expand", inputs=(_normal(4, 1), _whole(2, 1, 3))),
    Case(operator="Flatten", inputs=(_X,), attributes={"axis": 2}),
    Case(operator="Flatten", inputs=(_X,), attributes={"axis": -1}),
    *(
        Case(operator="Pad", inputs=(_X, _whole(0, 0, 2, 0, 1, 3)), attributes={"mode": mode})
        for mode in ("constant", "reflect", "edge")
    ),
    Case(operator="Pad", inputs=(_X, _whole(0, 1, -2, 0, 0, 2), np.float32(7))),
    Case(operator="Pad", inputs=(_X, _whole(1, 2), None, _whole(-1)), opset=18),
    Case(operator="Reshape", inputs=(_X, _whole(0, -1, 22))),
    Case(operator="Reshape", inputs=(_normal(0, 3), _whole(3, 0)), attributes={"allowzero": 1}),
    Case(operator="Shape", inputs=(_X,)),
    Case(operator="Shape", inputs=(_X,), attributes={"start": -2, "end": -1}),
    Case(operator="Size", inputs=(_X,)),
    Case(operator="Slice", inputs=(_X, _whole(-9, 1), _whole(-1, 9), _whole(2, 1))),
    Case(operator="Slice", inputs=(_X, _whole(-1), _whole(-(2**63)), _whole(2), _whole(-1))),
    Case(operator="Slice", inputs=(_X, _whole(9), _whole(1), _whole(-1), _whole(-3))),
    Case(operator="Slice", inputs=(_X, _whole(1), _whole(2**63 - 1), _whole(2), _whole(4))),
    Case(operator="Slice", inputs=(_X, _whole(5), _whole(2), _whole(2))),
    Case(operator="Split", inputs=(_X, _whole(3, 8)), attributes={"axis": 2}, outputs=2),
    Case(operator="Split", inputs=(_X,), attributes={"axis": 1}, outputs=2),
    Case(
        operator="Split",
        inputs=(_X,),
        attributes={"axis": 2, "num_outputs": 3},
        opset=18,
        outputs=3,
    ),
    Case(operator="Squeeze", inputs=(_normal(1, 3, 1),)),
    Case(operator="Squeeze", inputs=(_normal(1, 3, 1), _whole(-1))),
    Case(operator="Tile", inputs=(_X, _whole(1, 2, 3))),
    Case(operator="Transpose", inputs=(_X,)),
    Case(operator="Transpose", inputs=(_X,), attributes={"perm": [0, 2, 1]}),
    Case(operator="Unsqueeze", inputs=(_normal(3, 4), _whole(-1, 0))),
    # Indices
    Case(
        operator="Constant", inputs=(), attributes={"value": numpy_helper.from_array(_normal(2, 3))}
    ),
    Case(operator="ConstantOfShape", inputs=(_whole(2, 3),)),
    Case(
        operator="ConstantOfShape",
        inputs=(_whole(4),),
        attributes={"value": numpy_helper.from_array(_whole(7))},
    ),
    Case(operator="Gather", inputs=(_TABLE, _whole([0, -1], [4, 2]))),
    Case(operator="Gather", inputs=(_TABLE, np.array(-2, np.int64)), attributes={"axis": 1}),
    Case(
        operator="GatherElements",
        inputs=(_TABLE, _whole([[0, 1]], [[-1, 0]])),
        attributes={"axis": 2},
    ),
    Case(operator="GatherND", inputs=(_TABLE, _whole([0, 1], [-1, 2]))),
    Case(operator="NonZero", inputs=(_X > 1,)),
    Case(operator="Range", inputs=(np.float32(1), np.float32(4.2), np.float32(0.5))),
    Case(operator="Range", inputs=(np.int64(5), np.int64(-4), np.int64(-2))),
    Case(
        operator="ScatterElements",
        inputs=(_TABLE, _whole([[0, 1]], [[-1, 0]]), _normal(2, 1, 2)),
        attributes={"axis": 2},
    ),
    Case(operator="ScatterND", inputs=(_TABLE, _whole([0, 1], [-1, 2]), _normal(2, 2))),
    Case(
        operator="ScatterND",
        inputs=(_TABLE, _whole([3, 1], [3, 1]), _normal(2, 2)),
        attributes={"reduction": "add"},
    ),
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
        (
            make_node("Loop", "n", "y", "/net/again"),
            "operator Loop of node '/net/again'",
        ),
        (make_node("RandomNormalLike", "x", "y", ""), "RandomNormalLike of node 'y'"),
        (
            make_node("QLinearAdd", "x", "y", domain="com.microsoft"),
            r"com\.microsoft\.QLinearAdd",
        ),
    ],
)
def test_unknown_operator_is_named(node: onnx.NodeProto, problem: str) -> None:
    with pytest.raises(QuantizationError, match=problem):
        find_operator(node)


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (Case(operator="Cast", inputs=(_X,), attributes={"to": TensorProto.STRING}), "STRING"),
        (
            Case(operator="GatherND", inputs=(_X, _whole([0])), attributes={"batch_dims": 1}),
            "batch",
        ),
        (
            Case(operator="LayerNormalization", inputs=(_X, _normal(11)), outputs=2),
            "also returns mean",
        ),
        (
            Case(
                operator="ScatterElements",
                inputs=(_TABLE, _whole([[0]]), _normal(1, 1, 1)),
                attributes={"reduction": "mul"},
            ),
            "joins values by 'mul'",
        ),
        (
            Case(
                operator="ScatterND",
                inputs=(_TABLE, _whole([0]), _normal(1, 3, 2)),
                attributes={"reduction": "max"},
            ),
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
    node = Case(operator="Conv", inputs=(_X, _W), attributes={"pads": [1, 0]}).node()
    (made,) = find_operator(node)(torch.from_numpy(_X), weight)
    made.square().sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert float(weight.grad.abs().sum()) > 0
