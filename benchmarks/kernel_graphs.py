"""The small graphs on which equivalent kernels are compared: a few layers of a voice each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.quantize.onnx.integer import IntegerPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tts_compress.targets import Target

__all__ = ["CASES", "Case"]

Layers = list[onnx.NodeProto]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One graph, x (1, C, T) in and y out, for the alternatives of one choice."""

    choice: str
    alternatives: tuple[str, ...]
    shape: str
    inputs: tuple[int, int]
    """Channels and length of x."""

    layers: Layers
    weights: dict[str, tuple[int, ...]]
    channels: int = 0

    def model(self) -> onnx.ModelProto:
        """Return the graph in FP32; its weights are drawn from a fixed seed."""
        generator = np.random.default_rng(0)
        constants = []
        for name, shape in self.weights.items():
            scale = 1 / np.sqrt(np.prod(shape[1:]))
            values = generator.normal(scale=scale, size=shape).astype(np.float32)
            constants.append(numpy_helper.from_array(values, name))
        graph = helper.make_graph(
            self.layers,
            self.choice,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, self.inputs[0], "t"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)

    def tapped(self, names: Sequence[str]) -> onnx.ModelProto:
        """Return the graph in FP32 with inner tensors among its outputs."""
        model = self.model()
        extra = [n for n in names if n not in {"x", "y"}]
        model.graph.output.extend(
            helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in extra
        )
        if "x" in names:
            model.graph.output.append(model.graph.input[0])
        return model

    def feed(self) -> dict[str, Any]:
        """Return an input."""
        size = (1, *self.inputs)
        return {"x": np.random.default_rng(1).normal(size=size).astype(np.float32)}

    def plan(self, alternative: str, target: Target) -> IntegerPlan | None:
        """Return how an alternative is emitted; None for FP32 throughout."""
        if alternative == "real" and self.choice == "narrowest":
            return None
        convolutions = {n.output[0] for n in self.layers if n.op_type == "Conv"}
        if (self.choice, alternative) != ("upsampling", "real"):
            convolutions |= {n.output[0] for n in self.layers if n.op_type == "ConvTranspose"}
        chosen = target.choices.model_dump(exclude={"upsampling", "narrowest", "torch_linear"})
        if self.choice in chosen:
            chosen[self.choice] = alternative
        return IntegerPlan(
            convolutions=frozenset(convolutions),
            signed=target.signed,
            weight_limit=target.weight_limit,
            **chosen,
        )


def _node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], f"/{output}/{op}", **attributes)


def _residual(
    choice: str, alternatives: tuple[str, ...], channels: int, length: int, width: int = 0
) -> Case:
    """Return two residual blocks of a decoder between two more convolutions."""
    layers = [_node("Conv", "x w0 b0", "h0", pads=[1, 1])]
    for index, dilation in ((1, 1), (2, 3)):
        before = f"h{index - 1}"
        weight, bias, pads = f"w{index}", f"b{index}", [dilation, dilation]
        layers += [
            _node("LeakyRelu", before, f"a{index}", alpha=0.1),
            _node(
                "Conv", f"a{index} {weight} {bias}", f"c{index}", pads=pads, dilations=[dilation]
            ),
            _node("Add", f"c{index} {before}", f"h{index}"),
        ]
    layers += [
        _node("LeakyRelu", "h2", "a3", alpha=0.1),
        _node("Conv", "a3 w3 b3", "y", pads=[1, 1]),
    ]
    weights: dict[str, tuple[int, ...]] = {f"w{i}": (channels, channels, 3) for i in range(4)}
    weights |= {f"b{i}": (channels,) for i in range(4)}
    return Case(
        choice=choice,
        alternatives=alternatives,
        shape=f"2 residual blocks, {channels} channels, {length} samples",
        inputs=(channels, length),
        layers=layers,
        weights=weights,
        channels=width,
    )


def _gates(channels: int, length: int) -> Case:
    """Return a layer of a flow's wavenet."""
    layers = [
        _node("Conv", "x w1 b1", "h", pads=[2, 2]),
        _node("Conv", "x w2 b2", "g", pads=[2, 2]),
        _node("Tanh", "h", "t"),
        _node("Sigmoid", "g", "s"),
        _node("Mul", "t s", "m"),
        _node("Conv", "m w3 b3", "y"),
    ]
    weights: dict[str, tuple[int, ...]] = {f"w{i}": (channels, channels, 5) for i in (1, 2)}
    weights |= {"w3": (2 * channels, channels, 1), "b3": (2 * channels,)}
    weights |= {f"b{i}": (channels,) for i in (1, 2)}
    return Case(
        choice="gates",
        alternatives=("codes", "real"),
        shape=f"gated layer, {channels} channels, {length} frames",
        inputs=(channels, length),
        layers=layers,
        weights=weights,
    )


def _upsampled(channels: int, stride: int, length: int, last: Callable[[int], Case]) -> Case:
    """Return an upsampling by `stride` to half the channels, before the layers of a case."""
    half, case = channels // 2, last(channels // 2)
    before = [
        _node("Conv", "x v0 d0", "before", pads=[1, 1]),
        _node("LeakyRelu", "before", "active", alpha=0.1),
        _node(
            "ConvTranspose", "active v1 d1", "up", strides=[stride], pads=[stride // 2, stride // 2]
        ),
    ]
    weights: dict[str, tuple[int, ...]] = {
        "v0": (channels, channels, 3),
        "d0": (channels,),
        "v1": (channels, half, 2 * stride),
        "d1": (half,),
    }
    return Case(
        choice=case.choice,
        alternatives=case.alternatives,
        shape=f"{channels} channels, {length} frames, upsampled by {stride}; {case.shape}",
        inputs=(channels, length),
        layers=before + case.layers,
        weights=weights | case.weights,
    )


def _one_convolution(channels: int) -> Case:
    layers = [
        _node("LeakyRelu", "up", "a", alpha=0.1),
        _node("Conv", "a w b", "y", pads=[1, 1]),
    ]
    return Case(
        choice="upsampling",
        alternatives=("codes", "real"),
        shape=f"1 convolution, {channels} channels",
        inputs=(channels, 0),
        layers=layers,
        weights={"w": (channels, channels, 3), "b": (channels,)},
    )


def _audio(channels: int) -> Case:
    layers = [
        _node("LeakyRelu", "up", "a", alpha=0.01),
        _node("Conv", "a w b", "y", pads=[3, 3]),
    ]
    return Case(
        choice="few_outputs",
        alternatives=("blocks", "frames", "codes"),
        shape="1 output, 7 taps",
        inputs=(channels, 0),
        layers=layers,
        weights={"w": (1, channels, 7), "b": (1,)},
    )


CASES: tuple[Case, ...] = (
    *(
        _residual("leaky_relu", ("max", "lookup"), channels, length)
        for channels, length in ((128, 1024), (64, 4096), (32, 16384))
    ),
    *(
        _residual("addition", ("codes", "real"), channels, length)
        for channels, length in ((128, 1024), (64, 4096), (32, 16384))
    ),
    _gates(192, 256),
    _gates(96, 256),
    _upsampled(256, 8, 128, _one_convolution),
    _upsampled(128, 8, 512, _one_convolution),
    _upsampled(64, 2, 4096, _one_convolution),
    _upsampled(64, 8, 2048, _audio),
    _upsampled(32, 8, 2048, _audio),
    *(
        _residual("narrowest", ("integer", "real"), channels, 65536 // max(channels, 8), channels)
        for channels in (128, 64, 32, 16, 8)
    ),
)
