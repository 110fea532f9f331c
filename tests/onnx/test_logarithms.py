"""Spectra whose logarithm is taken: quiet bands need what integers do not hold."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.errors import TTSCompressWarning
from tts_compress.models import open_model
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.precision import logarithm_outputs

_SIZE, _BANDS = 128, 24
_BINS = _SIZE // 2 + 1


def _encoder(*, turned: bool = False) -> onnx.ModelProto:
    """Return sound [1, 1, T] → bands of power by a Fourier transform → logarithm → a large layer.

    Bands are the left operand of their product where it is `turned`.
    """
    random = np.random.default_rng(0)
    angles = 2 * np.pi * np.outer(np.arange(_BINS), np.arange(_SIZE)) / _SIZE
    basis = np.concatenate([np.cos(angles), np.sin(angles)]) * np.hanning(_SIZE)
    bands = np.maximum(0, 1 - np.abs(np.arange(_BINS) / 2.7 - np.arange(_BANDS)[:, None]))
    weights = {
        "basis": basis[:, None],
        "bands": bands if turned else bands.T,
        "floor": np.array(1e-6),
        "wide": random.normal(size=(1024, _BANDS, 5)) / 11,
        "narrow": random.normal(size=(16, 1024, 5)) / 70,
    }
    bins = np.array([_BINS, _BINS])
    nodes = [
        make_node("Conv", "sound basis", "parts", strides=[_SIZE // 4]),
        make_node("Split", "parts bins", "real imaginary", axis=1),
        make_node("Mul", "real real", "a"),
        make_node("Mul", "imaginary imaginary", "b"),
        make_node("Add", "a b", "power"),
    ]
    if turned:
        nodes += [make_node("MatMul", "bands power", "mel")]
    else:
        nodes += [
            make_node("Transpose", "power", "frames", perm=[0, 2, 1]),
            make_node("MatMul", "frames bands", "rows"),
            make_node("Transpose", "rows", "mel", perm=[0, 2, 1]),
        ]
    nodes += [
        make_node("Max", "mel floor", "kept"),
        make_node("Log", "kept", "levels"),
        make_node("Conv", "levels wide", "h"),
        make_node("Relu", "h", "act"),
        make_node("Conv", "act narrow", "y"),
    ]
    return make_model(nodes, {"sound": [1, 1, "T"]}, {"y": None}, weights | {"bins": bins})


def _sound(seed: int) -> Any:
    """Return two seconds of tones with pauses, 60 dB apart."""
    random, time = np.random.default_rng(seed), np.arange(16_000) / 8_000
    tones = sum(np.sin(random.uniform(600, 12_000) * time) for _ in range(4))
    loudness = np.exp(-3.5 * (1 + np.sin(2 * np.pi * time)))
    return (0.1 * tones * loudness)[None, None].astype(np.float32)


@pytest.mark.parametrize("turned", [False, True])
def test_layers_before_a_logarithm_are_found_through_each_other(*, turned: bool) -> None:
    made = logarithm_outputs(Graph(_encoder(turned=turned)))
    assert {"kept", "mel", "power", "parts"} <= made
    assert made.isdisjoint({"levels", "h", "y"})


@pytest.mark.parametrize(
    ("nodes", "layers"),
    [
        ([("Exp", "h", "e"), ("Add", "e one", "x")], 0),  # softplus
        ([("Softmax", "h", "x")], 0),
        ([("Relu", "h", "x"), ("Log", "mask", "of_an_input")], 1),
        ([("Greater", "h one", "is_loud"), ("Where", "is_loud h one", "x")], 1),
        ([("Sigmoid", "h", "s"), ("Mul", "h s", "x")], 0),  # a gate
        ([("Mul", "h mask", "x")], 1),
        ([("Relu", "h", "r"), ("MatMul", "r v", "m"), ("Abs", "m", "x")], 1),  # a network
        ([("MatMul", "h v", "m"), ("Pow", "m two", "p"), ("Sqrt", "p", "x")], 2),
        ([("LayerNormalization", "h scale", "n"), ("MatMul", "n v", "x")], 1),
    ],
)
def test_activations_and_normalisation_end_a_spectrum(
    nodes: list[tuple[str, str, str]], layers: int
) -> None:
    """A softplus, a flow's determinant, and a network that predicts levels are no spectra."""
    weights: dict[str, Any] = {name: np.ones((4, 4)) for name in "wv"}
    weights |= {"one": np.ones(()), "two": np.full((), 2.0), "scale": np.ones(4)}
    chain = [make_node("MatMul", "a w", "h"), *(make_node(*node) for node in nodes)]
    ends = {"a": [4, 4], "mask": [4, 4]}
    model = make_model([*chain, make_node("Log", "x", "y")], ends, {"y": None}, weights, opset=17)
    made = logarithm_outputs(Graph(model))
    assert len(made & {n.output[0] for n in chain if n.op_type == "MatMul"}) == layers


@pytest.mark.parametrize("scheme", ["int8", "bf16", "fp16"])
def test_spectra_before_a_logarithm_are_computed_in_fp32(tmp_path: Path, scheme: str) -> None:
    """Encoders of speakers had an error as loud as their output, and nothing said so."""
    model = _encoder()
    onnx.save(model, tmp_path / "encoder.onnx")
    calls = [{"sound": _sound(seed)} for seed in range(4)] if scheme == "int8" else None
    small: Any = compress(
        open_model(f"onnx:{tmp_path / 'encoder.onnx'}"), scheme, calibration=calls
    )
    reason = "" if scheme == "fp16" else "it makes a spectrum whose logarithm is taken"
    stored = "float16" if scheme == "fp16" else "float32"
    front = [layer for layer in small.manifest.layers if layer.parameters < 20_000]
    assert {(d.weights, d.activations, d.reason) for d in front} == {(stored, "none", reason)}
    assert all(d.weights != "float32" for d in small.manifest.layers if d not in front)
    feeds = {"sound": _sound(9)}
    (exact,), (result,) = (run_model(graph, feeds) for graph in (model, small.graph()))
    assert snr_db(exact, result) > 25


def test_result_that_is_hardly_the_originals_is_told(tmp_path: Path) -> None:
    """A tiny difference of large numbers is less than a step of their codes."""
    weights = {"w": np.repeat([[1.0], [-1.0]], 16, axis=0) * np.ones((1, 16))}
    model = make_model(
        [make_node("MatMul", "x w", "h"), make_node("Neg", "h", "y")],
        {"x": ["N", 32]},
        {"y": None},
        weights,
    )
    onnx.save(model, tmp_path / "difference.onnx")
    random = np.random.default_rng(0)
    calls = [{"x": (1 + 1e-4 * random.normal(size=(4, 32))).astype(np.float32)}]
    told = r"'compressed .*difference\.onnx' returns 'y' with only -?\d+\.\d dB .* exclude modules"
    with pytest.warns(TTSCompressWarning, match=told) as caught:
        compress(f"onnx:{tmp_path / 'difference.onnx'}", "int8-static", calibration=calls)
    assert [warning.filename for warning in caught] == [__file__]


def test_outputs_that_are_not_compared_are_told(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(32, 32))}
    model = make_model(
        [make_node("MatMul", "x w", "h"), make_node("ArgMax", "h", "y")],
        {"x": ["N", 32]},
        {"y": (onnx.TensorProto.INT64, None)},
        weights,
    )
    onnx.save(model, tmp_path / "codes.onnx")
    calls = [{"x": np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)}]
    with pytest.warns(TTSCompressWarning, match="was not compared .* no output of real numbers"):
        compress(f"onnx:{tmp_path / 'codes.onnx'}", "int8", calibration=calls)
