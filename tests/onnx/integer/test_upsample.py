"""Transposed convolutions as ordinary ones: equal to rounding, refused where they are not equal."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, run_model
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer.emitter import integer_form


@dataclass(frozen=True)
class Case:
    """One transposed convolution."""

    kernel: int
    stride: int
    pads: tuple[int, int]
    output_padding: int = 0
    dilation: int = 1
    group: int = 1
    length: int | None = None
    """The number of samples that the node states, whatever it reads."""


def _model(case: Case) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    stated = {} if case.length is None else {"output_shape": [case.length]}
    weight = generator.normal(size=(6, 4 // case.group, case.kernel)).astype(np.float32)
    node = make_node(
        "ConvTranspose",
        "x weight",
        "y",
        "up",
        strides=[case.stride],
        pads=list(case.pads),
        output_padding=[case.output_padding],
        dilations=[case.dilation],
        group=case.group,
        **stated,
    )
    return make_model(
        [node], {"x": ["batch", 6, "time"]}, {"y": ["batch", 4, "samples"]}, {"weight": weight}
    )


EXACT = {
    "piper-first": Case(kernel=16, stride=8, pads=(4, 4)),
    "piper-last": Case(kernel=8, stride=4, pads=(2, 2)),
    "high-last": Case(kernel=4, stride=2, pads=(1, 1)),
    "odd-stride": Case(kernel=6, stride=3, pads=(2, 2), output_padding=1),
    "one-tap": Case(kernel=4, stride=4, pads=(0, 0)),
    "three-taps": Case(kernel=12, stride=4, pads=(4, 4)),
}


@pytest.mark.parametrize("length", [1, 7, 32])
@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT.keys())
def test_equal_to_the_transposed_convolution(case: Case, length: int) -> None:
    model = _model(case)
    form = integer_form(Graph(model), model.graph.node[0])
    assert form is not None
    plain = form.convolution
    x = np.random.default_rng(1).normal(size=(2, 6, length)).astype(np.float32)
    (expected,) = run_model(model, {"x": x})
    padded = np.pad(x, ((0, 0), (0, 0), plain.pads))
    windows = np.lib.stride_tricks.sliding_window_view(padded, plain.weight.shape[2], axis=2)
    frames = np.einsum("bitk,oik->bto", windows, plain.weight)
    samples = frames.reshape(2, -1, 4)[:, form.skip :][:, : length * case.stride]
    found = samples.swapaxes(1, 2)
    assert expected.shape == found.shape
    assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()


REFUSED = {
    "length-not-a-multiple": Case(kernel=16, stride=8, pads=(3, 4)),
    "ragged-kernel": Case(kernel=9, stride=8, pads=(0, 1)),
    "dilated": Case(kernel=4, stride=2, pads=(1, 1), dilation=2),
    "grouped": Case(kernel=4, stride=2, pads=(1, 1), group=2),
    "of-a-stated-length": Case(kernel=4, stride=2, pads=(1, 1), length=64),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refused(case: Case) -> None:
    model = _model(case)
    assert integer_form(Graph(model), model.graph.node[0]) is None
