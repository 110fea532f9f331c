"""Random noise as an input of a graph, so that two graphs can be given the same.

A seed does not pair two graphs: runtimes derive each random operator's stream from its position,
so an FP32 graph and its quantized copy draw different noise, and the difference between the two
sounds swamps what quantization did. Noise that is fed pairs them exactly.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.audio import Samples
from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.onnx.graph import attribute, copy_model

NOISE_LENGTH = 1 << 18
"""Values fed per operator; a longer need repeats them (with 192 channels after 1,365 frames)."""

NOISE_PREFIX = "tts_compress.noise."
"""Prefix of the inputs that take noise, and of the operators that read them."""
_RANDOM = {"RandomNormal", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


def feed_noise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which every `RandomNormalLike` reads its values from a new input.

    The values of an input of shape `[NOISE_LENGTH]` fill a tensor `[B, C, T]` time step by time
    step, so that a graph with other durations still gets equal noise at equal times.

    Raises:
        ModelError: The graph draws randomness in another way, which cannot be paired.
    """
    fed = copy_model(model)
    others = sorted({node.op_type for node in fed.graph.node} & _RANDOM)
    if others:
        raise ModelError(f"the graph uses {', '.join(others)}; only RandomNormalLike can be paired")
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in fed.graph.node:
        if node.op_type != "RandomNormalLike":
            nodes.append(node)
            continue
        name = f"{NOISE_PREFIX}{count}"
        fed.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]))
        nodes.extend(_read_noise(name, node))
        count += 1
    del fed.graph.node[:]
    fed.graph.node.extend(nodes)
    constants = {"zero": [0], "one": [1], "time_major": [0, 2, 1]} if count else {}
    fed.graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), f"{NOISE_PREFIX}{name}")
        for name, value in constants.items()
    )
    return fed


def noise_inputs(names: list[str]) -> list[str]:
    """Return those of a graph's input names that take noise, in the order of its operators."""
    found = (name for name in names if name.startswith(NOISE_PREFIX))
    return sorted(found, key=lambda name: int(name.split(".")[-1]))


def draw_noise(names: list[str], *, seed: tuple[int, ...] | None) -> dict[str, Samples]:
    """Return standard normal values for each noise input; zeros where `seed` is None.

    Raises:
        TTSCompressError: A part of the seed is negative.
    """
    if seed is None:
        return {name: np.zeros(1, np.float32) for name in noise_inputs(names)}
    if min(seed) < 0:
        raise TTSCompressError(f"seed {min(seed)} is negative; give 0 or a larger integer")
    return {
        name: np.random.default_rng([*seed, index]).standard_normal(NOISE_LENGTH, np.float32)
        for index, name in enumerate(noise_inputs(names))
    }


def _read_noise(name: str, random: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes that stand for one random operator."""

    def node(operator: str, inputs: list[str], part: str, **attributes: Any) -> onnx.NodeProto:
        made = f"{name}/{part}"
        return helper.make_node(operator, inputs, [made], made, **attributes)

    def number(value: float) -> onnx.TensorProto:
        return helper.make_tensor("", TensorProto.FLOAT, [], [value])

    dtype = attribute(random, "dtype", int(TensorProto.FLOAT))
    return [
        node("Shape", [random.input[0]], "shape"),
        node("ReduceProd", [f"{name}/shape"], "size", keepdims=1),
        # Repeat the values as often as the tensor needs: size / available + 1 times.
        node("Size", [name], "available"),
        node("Div", [f"{name}/size", f"{name}/available"], "quotient"),
        node("Add", [f"{name}/quotient", f"{NOISE_PREFIX}one"], "repeats"),
        node("Tile", [name, f"{name}/repeats"], "tiled"),
        node("Slice", [f"{name}/tiled", f"{NOISE_PREFIX}zero", f"{name}/size"], "flat"),
        # [B, C, T] is filled as [B, T, C].
        node("Gather", [f"{name}/shape", f"{NOISE_PREFIX}time_major"], "time_major_shape"),
        node("Reshape", [f"{name}/flat", f"{name}/time_major_shape"], "time_major"),
        node("Transpose", [f"{name}/time_major"], "standard", perm=[0, 2, 1]),
        node("Constant", [], "deviation", value=number(attribute(random, "scale", 1.0))),
        node("Constant", [], "mean", value=number(attribute(random, "mean", 0.0))),
        node("Mul", [f"{name}/standard", f"{name}/deviation"], "scaled"),
        node("Add", [f"{name}/scaled", f"{name}/mean"], "values"),
        helper.make_node("Cast", [f"{name}/values"], [random.output[0]], name, to=dtype),
    ]
