"""A finished graph is run beside its original before anybody gets it; old opsets are converted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_body, make_model, make_node, run_model
from tests.measures import snr_db
from tts_compress.artifact import read_manifest
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.compression.verification import run_original, verify
from tts_compress.errors import MissingExtraError, ModelError, QuantizationError, TTSCompressWarning
from tts_compress.models import load, open_model
from tts_compress.models.onnx_model import OnnxModel
from tts_compress.onnx.quantize.convert import count_arithmetic
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

_SCHEMES = [name for name in schemes_of("onnx") if not find_scheme(name).trained]
_IR = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7}


def _mel(frames: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(1, 12, frames)).astype(np.float32)


def _vocoder(opset: int) -> onnx.ModelProto:
    """Return convolutions, upsampling and a product, as exporters of an opset wrote them."""
    random = np.random.default_rng(0)
    shapes = {"pre": (32, 12, 3), "up": (32, 32, 8), "rows": (32, 32), "post": (1, 32, 7)}
    weights = {f"{n}.weight": random.normal(size=s) / 5 for n, s in shapes.items()}
    nodes = [
        make_node("Conv", "mel pre.weight", "a", "/pre/Conv", pads=[1, 1]),
        make_node("LeakyRelu", "a", "b", alpha=0.1),
        make_node("ConvTranspose", "b up.weight", "c", "/up/C", strides=[4], pads=[2, 2]),
        make_node("Transpose", "c", "d", perm=[0, 2, 1]),
        make_node("MatMul", "d rows.weight", "e", "/rows/MatMul"),
        make_node("Softmax", "e", "f", axis=2),
        make_node("Mul", "e f", "g"),
        make_node("Transpose", "g", "h", perm=[0, 2, 1]),
        make_node("Conv", "h post.weight", "i", "/post/Conv", pads=[3, 3]),
        make_node("Tanh", "i", "audio"),
    ]
    model = make_model(nodes, {"mel": [1, 12, "T"]}, {"audio": [1, 1, "N"]}, weights, opset=opset)
    model.ir_version = _IR.get(opset, 8)
    if model.ir_version < 4:  # weights were inputs, too
        stated = {name: [*value.shape] for name, value in weights.items()}
        model.graph.input.extend(make_body([], stated, {}).input)
    return model


def _compress(model: onnx.ModelProto, scheme: str, folder: Path) -> Any:
    onnx.save(model, folder / "vocoder.onnx")
    np.savez(folder / "feeds.npz", **{f"{i}/mel": _mel(20 + i, i) for i in range(3)})
    observes = find_recipe("onnx", scheme).calibration is not None
    feeds = folder / "feeds.npz" if observes else None
    return compress(f"onnx:{folder / 'vocoder.onnx'}", scheme, calibration=feeds)


_TURNS = (7, 9, 10, 11, 12, 13, 21, 22)
"""Opsets at which another operator, type or form of weights begins, and the first and the last."""

_FAST = [(opset, s) for opset in (7, 11, 12) for s in ("int8", "int8-weight-only")]
_FAST += [(7, "bf16"), (9, "int8-dynamic"), (10, "int4-weight-only"), (22, "int8")]


@pytest.mark.parametrize(
    ("opset", "scheme"),
    [
        pytest.param(opset, s, marks=[] if (opset, s) in _FAST else pytest.mark.slow)
        for opset in range(7, 23)
        for s in (_SCHEMES if opset in _TURNS else ["int8"])
    ],
)
def test_every_opset_is_compressed_into_a_graph_that_opens(
    tmp_path: Path, opset: int, scheme: str
) -> None:
    """Vocoders of 2020 have opsets 9 to 12.

    Weights are dequantized by channel from opset 13 on; older graphs were written, and no
    onnxruntime opened them.
    """
    original = _vocoder(opset)
    folder = _compress(original, scheme, tmp_path).save(tmp_path / "small")
    small: Any = open_model(folder)
    mel = _mel(33, 9)
    (exact,), (found,) = (run_model(g, {"mel": mel}) for g in (original, small.graph()))
    assert snr_db(exact, found) > 12  # of 4 bits, at random
    assert sum(small.manifest.run.arithmetic.values()) >= 4


def test_weights_in_a_loop_are_told(tmp_path: Path) -> None:
    """They stayed in FP32 without a word, and the manifest did not list them."""
    random = np.random.default_rng(0)
    body = make_body(
        [make_node("MatMul", "h w", "n", "/dec/MatMul"), make_node("Identity", "on", "again")],
        {"i": (TensorProto.INT64, []), "on": (TensorProto.BOOL, []), "h": [1, 64]},
        {"again": (TensorProto.BOOL, []), "n": [1, 64]},
    )
    nodes = [
        make_node("MatMul", "x v", "a", "/enc/MatMul"),
        make_node("Loop", "times - a", "y", body=body),
    ]
    weights = {name: random.normal(size=(64, 64)) / 8 for name in "vw"} | {"times": np.array(3)}
    onnx.save(make_model(nodes, {"x": [1, 64]}, {"y": None}, weights), tmp_path / "loop.onnx")
    told = (
        r"^50% of the weights stay in FP32; 'dec' \(MatMul, 4,096\): it is in a branch or a loop;"
    )
    with pytest.warns(TTSCompressWarning, match=told) as caught:
        small: Any = compress(f"onnx:{tmp_path / 'loop.onnx'}", "int8-weight-only")
    assert [warning.filename for warning in caught] == [__file__]
    assert small.manifest.counts == {"MatMul float32/none": 1, "MatMul int8/none": 1}
    assert [layer.module for layer in small.manifest.layers] == ["enc", "dec"]


def test_weights_at_places_that_no_technique_converts_are_told(tmp_path: Path) -> None:
    """Nothing listed them: a graph of which 7 in 8 weights stayed in FP32 seemed to be in INT8."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {n: random.normal(size=(64, 64)) / 8 for n in ("e", "l", "w")}
    weights |= {"qkv": random.normal(size=(64, 192)) / 8, "bias": np.zeros(192)}
    nodes = [
        make_node("Einsum", "x e", "a", "/mix/Einsum", equation="btc,cd->btd"),
        make_node("Attention", "a qkv bias", "b", "/attend/A", domain="com.microsoft", num_heads=4),
        make_node("MatMul", "l b", "c", "/left/MatMul"),
        make_node("MatMul", "c w", "d", "/net/MatMul"),
        make_node("Cast", "d", "e64", to=TensorProto.DOUBLE),
        make_node("MatMul", "e64 wide", "y", "/wide/MatMul"),
    ]
    ends = {"x": [1, 64, 64]}, {"y": (TensorProto.DOUBLE, None)}
    model = make_model(nodes, *ends, weights, domains=["com.microsoft"])
    model.graph.initializer.append(numpy_helper.from_array(np.eye(64), "wide"))
    onnx.save(model, tmp_path / "places.onnx")
    with pytest.warns(TTSCompressWarning, match=r"^86% of the weights stay in FP32; 'attend' \(A"):
        small: Any = compress(f"onnx:{tmp_path / 'places.onnx'}", "int8-weight-only")
    reasons = {layer.module: (layer.weights, layer.reason) for layer in small.manifest.layers}
    assert reasons == {
        "net": ("int8", ""),
        "mix": ("float32", "no technique converts this operator"),
        "attend": ("float32", "no technique converts this operator"),
        "left": ("float32", "its weight is the first operand"),
        "wide": ("float64", "its weight is in FP64"),
    }
    assert small.manifest.counts["MatMul float64/none"] == 1


def test_old_graph_that_the_converter_does_not_know_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert_version(*_: Any) -> None:
        raise RuntimeError("No Adapter From Version $11 for Split\nand more")

    monkeypatch.setattr(onnx.version_converter, "convert_version", convert_version)
    with pytest.raises(QuantizationError, match=r"has opset 11; accepted are 13.*No Adapter.*=13"):
        _compress(_vocoder(11), "int8-weight-only", tmp_path)


@pytest.mark.parametrize(
    ("opset", "ir", "reason"),
    [
        (99, 8, "ONNX Runtime only.*guarantees.*support"),
        (17, 99, "Unsupported model IR version: 99"),
    ],
)
def test_graph_that_the_runtime_does_not_open_is_refused_by_its_name(
    tmp_path: Path, opset: int, ir: int, reason: str
) -> None:
    """It was 'the graph', and the reason was cut off behind a function of C++."""
    model = _vocoder(17)
    model.opset_import[0].version, model.ir_version = opset, ir
    with pytest.raises(ModelError, match=rf"^'onnx:.*vocoder\.onnx': .* : FAIL : {reason}"):
        _compress(model, "int8-weight-only", tmp_path)


def test_old_graph_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    """Without real inputs nothing shows that a converted graph is the same."""
    model = _vocoder(11)
    wrong = np.zeros((1, 12, 7), np.float32)  # frames of inputs that are made up are more
    model.graph.initializer.append(numpy_helper.from_array(wrong, "frames"))
    model.graph.node.insert(0, make_node("Add", "mel frames", "sum"))
    model.graph.node[1].input[0] = "sum"
    with pytest.raises(QuantizationError, match=r"has opset 11; accepted are 13.*opset_version=13"):
        _compress(model, "int8-weight-only", tmp_path)


def _original(tmp_path: Path) -> tuple[Any, onnx.ModelProto]:
    model = _vocoder(17)
    onnx.save(model, tmp_path / "vocoder.onnx")
    opened = OnnxModel(tmp_path / "vocoder.onnx", spec="vocoder.onnx")
    return run_original(opened.graph(), opened.spec, {"mel": _mel(20)}), model


def _with_weight(graph: onnx.GraphProto, change: Callable[[np.ndarray], Any]) -> None:
    weight = next(w for w in graph.initializer if w.name == "post.weight")
    changed = np.asarray(change(numpy_helper.to_array(weight)), np.float32)
    weight.CopyFrom(numpy_helper.from_array(changed, weight.name))


def _silent(graph: onnx.GraphProto) -> None:
    _with_weight(graph, np.zeros_like)


def _become(graph: onnx.GraphProto, operator: str, factor: float = 1) -> None:
    graph.node[9].op_type = operator
    _with_weight(graph, lambda weight: weight * factor)


def _flat(graph: onnx.GraphProto) -> None:
    graph.node[9].output[0] = "tanh"
    graph.node.append(make_node("Flatten", "tanh", "audio"))
    graph.output[0].type.tensor_type.ClearField("shape")


def _double(graph: onnx.GraphProto) -> None:
    graph.node[9].output[0] = "tanh"
    graph.node.append(make_node("Cast", "tanh", "audio", to=TensorProto.DOUBLE))
    graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE


_SECOND = helper.make_tensor_value_info("i", TensorProto.FLOAT, None)


def _failing(graph: onnx.GraphProto) -> None:
    shape = numpy_helper.from_array(np.array([3, 3], np.int64), "shape")
    graph.initializer.append(shape)
    graph.node[9].op_type = "Reshape"
    graph.node[9].input.append("shape")
    graph.output[0].type.tensor_type.ClearField("shape")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_silent, r"'audio' of the 'compressed vocoder\.onnx' is silent: .* exclude modules"),
        (
            lambda g: _become(g, "Exp", 1e6),
            "has values that are not finite, the original's has none",
        ),
        (
            lambda g: _with_weight(g, lambda w: np.full_like(w, np.inf)),
            r"could not be read again: weight 'post\.weight' has values",
        ),
        (_flat, "is float32 with 2 axes, the original's float32 with 3 axes"),
        (_double, "is float64 with 3 axes, the original's float32"),
        (lambda g: g.output.append(_SECOND), "returns audio, i, the original audio"),
        (
            lambda g: _become(g, "NoSuchOperator"),
            r"cannot open 'compressed vocoder\.onnx': .*NoSuchOperator.*another scheme",
        ),
        (_failing, r"'compressed vocoder\.onnx' cannot be run: .*another scheme"),
    ],
)
def test_what_does_not_return_the_same_is_refused(
    tmp_path: Path, damage: Callable[[onnx.GraphProto], None], problem: str
) -> None:
    """Nothing ran a result before it was called one."""
    original, finished = _original(tmp_path)
    damage(finished.graph)
    with pytest.raises(QuantizationError, match=problem):
        verify(original, finished)


def test_equal_graph_is_far_above_noise(tmp_path: Path) -> None:
    record = verify(*_original(tmp_path))
    assert record.snr_db is not None
    assert record.snr_db > 100
    assert record.arithmetic == {"FP32": 4}


def test_samples_of_16_bits_are_compared() -> None:
    """A decoder that returns them could be silent, and nothing said so."""
    model = _vocoder(17)
    model.graph.node[9].output[0] = "tanh"
    model.graph.initializer.append(numpy_helper.from_array(np.array(32767, np.float32), "full"))
    model.graph.node.append(make_node("Mul", "tanh full", "scaled"))
    model.graph.node.append(make_node("Cast", "scaled", "audio", to=TensorProto.INT16))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT16
    original = run_original(model, "samples", {"mel": _mel(20)})
    snr = verify(original, model).snr_db
    assert snr is not None
    assert snr > 100
    _silent(model.graph)
    with pytest.raises(QuantizationError, match="is silent"):
        verify(original, model)


def test_what_is_not_compared_has_its_own_reason(tmp_path: Path) -> None:
    """Two were named in one sentence."""
    original, finished = _original(tmp_path)
    other = {"audio": np.ones((1, 1, 3), np.float32)}
    for outputs, reason in (
        (None, "no inputs are known that the original takes"),
        (other, "no output of real numbers has the original's shape"),
        (original.outputs, None),
    ):
        assert verify(replace(original, outputs=outputs), finished).reason == reason


def test_nothing_is_written_that_cannot_be_read_again(tmp_path: Path) -> None:
    """Files are read with the same eyes as those of strangers, before they get their name."""
    small = _compress(_vocoder(17), "int8-weight-only", tmp_path)
    broken = small.graph()
    del broken.graph.output[:]
    with pytest.raises(ModelError, match="without outputs"):
        small.with_graphs({"": broken}, small.manifest).save(tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_quantize_says_what_was_multiplied_in_which_arithmetic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(_vocoder(17), tmp_path / "vocoder.onnx")
    command = ["quantize", f"onnx:{tmp_path / 'vocoder.onnx'}", "--scheme", "fp16", "--no-time"]
    assert main([*command, "--output", str(tmp_path / "small")]) == 0
    printed = capsys.readouterr().out
    run = read_manifest(tmp_path / "small").run
    assert run is not None
    halves = run.arithmetic.get("float16", 0)
    assert f"{halves} of 4 layers are multiplied in float16 here" in printed
    assert ("onnxruntime computes them in FP32" in printed) == (halves == 0)
    assert f"{run.snr_db} dB signal-to-noise against the original" in printed


def test_arithmetic_is_that_of_the_kernels() -> None:
    """A weight in half precision behind a cast is multiplied in FP32."""
    weights = {"half": np.ones((3, 3), np.float16), "codes": np.ones((3, 3), np.int8)}
    nodes = [
        make_node("MatMul", "x half", "a"),
        make_node("Cast", "half", "wide", to=TensorProto.FLOAT),
        make_node("MatMul", "y wide", "b"),
        make_node("FusedMatMul", "y wide", "c", domain="com.microsoft"),
        make_node("MatMulInteger", "z codes", "d"),
        make_node("Gather", "half i", "e"),
        make_node("MatMul", "a a", "f"),
    ]
    counts = count_arithmetic(make_model(nodes, {}, {}, weights))
    assert counts == {"float16": 1, "FP32": 2, "integers": 1}


def test_layers_in_a_loop_are_counted() -> None:
    """Where a voice makes its sound chunk by chunk, its decoder's layers were left out."""
    inner = [make_node("MatMulInteger", "h codes", "a"), make_node("MatMul", "a own", "b")]
    body = make_body(inner, {}, {"b": None}, {"own": np.ones((3, 3))})
    loop = make_node("Loop", "n", "y", body=body)
    weights = {"codes": np.ones((3, 3), np.int8)}
    assert count_arithmetic(make_model([loop], {}, {}, weights)) == {"integers": 1, "FP32": 1}


@pytest.mark.parametrize(
    ("scheme", "again"), [("int8", "int8-weight-only"), ("int8-dynamic", "int8")]
)
def test_integers_are_no_original(tmp_path: Path, scheme: str, again: str) -> None:
    """It was a promise that the recipe had not kept, to be reported; in `int8` after minutes."""
    small = _compress(_vocoder(17), scheme, tmp_path).graph()
    with pytest.raises(QuantizationError, match=r"compressed already: .* int8/.*FP32 original"):
        _compress(small, again, tmp_path)


@pytest.mark.slow
def test_a_voice_that_cannot_speak_here_is_still_compressed(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are rounded without calibration; nothing need be installed that phonemizes."""
    voice = load(tiny_path)

    def calibration_calls(*_: Any, **__: Any) -> Any:
        raise MissingExtraError("piper", "piper")

    monkeypatch.setattr(type(voice), "calibration_calls", calibration_calls)
    manifest = compress(voice, "int8-weight-only").manifest
    assert manifest is not None
    assert manifest.run is not None


def _one_layer(operator: str, weight: Any, inputs: list[Any]) -> onnx.ModelProto:
    """Return a graph of a layer, whose weight is of no module, and a recurrent one behind it."""
    random, channels = np.random.default_rng(1), weight.shape[0]
    shapes = {"w1": (1, 24, channels), "w2": (1, 24, 8)}
    held = {name: random.normal(size=s) for name, s in shapes.items()}
    nodes = [
        make_node(operator, "x w0", "a", "/n0"),
        make_node("Transpose", "a", "b", "/n1", perm=[2, 0, 1]),
        make_node("GRU", "b w1 w2", "y", "/n2", hidden_size=8),
    ]
    outputs = {"y": ["T", 1, "N", 8]}
    return make_model(nodes, {"x": inputs}, outputs, {"w0": weight} | held, opset=17)


@pytest.mark.parametrize("scheme", ["fp16", "bf16"])
def test_layers_without_a_module_are_decided_one_by_one(tmp_path: Path, scheme: str) -> None:
    """A recurrent layer that stays FP32 kept the convolution of no module in FP32, too."""
    weight = np.random.default_rng(0).normal(size=(16, 16, 3)).astype(np.float32)
    onnx.save(_one_layer("Conv", weight, [1, 16, "T"]), tmp_path / "g.onnx")
    small: Any = compress(f"onnx:{tmp_path / 'g.onnx'}", scheme)
    assert small.manifest.counts


@pytest.mark.parametrize("size", [1 << 40, -1])
def test_inputs_beyond_reason_are_not_made_up(tmp_path: Path, size: int) -> None:
    """The trial of a finished graph asked for 256 TiB."""
    weight = np.random.default_rng(0).normal(size=(64, 64, 3)).astype(np.float32)
    onnx.save(_one_layer("Conv", weight, [size, 64, 32]), tmp_path / "g.onnx")
    assert run_original(onnx.load(tmp_path / "g.onnx"), "g", None).outputs is None


@pytest.mark.parametrize("scheme", ["fp16", "int8"])
def test_layers_whose_results_nothing_reads_are_left_out(tmp_path: Path, scheme: str) -> None:
    model = _vocoder(17)
    weight = numpy_helper.from_array(np.ones((32, 32, 8), np.float32), "dead.weight")
    model.graph.initializer.append(weight)
    model.graph.node.insert(2, make_node("ConvTranspose", "b dead.weight", "dead"))
    model.graph.node.insert(3, make_node("Transpose", "dead", "deader"))
    nodes = _compress(model, scheme, tmp_path).graph().graph.node
    assert not any(name.startswith("dead") for node in nodes for name in node.input)
