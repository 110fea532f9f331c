"""A voice that makes its sound in chunks within its graph says the same, and takes less memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node, run_model
from tests.measures import graph_bytes
from tts_compress.compression import compress
from tts_compress.inspection.check import check_runtime
from tts_compress.models import load
from tts_compress.onnx import chunks
from tts_compress.onnx.chunks import in_chunks, joined
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import open_session

_REACH = 9
"""Samples on either side that the last layer of a small graph reads."""

_TEXTS = ("Hi.", "The quick brown fox jumps over the lazy dog, and runs away.")


@pytest.fixture
def artifacts(compressed: Callable[[str], Path]) -> None:
    """Make artifacts that other tests share, with chunks as they are."""
    for scheme in ("int8", "int8-dynamic"):
        compressed(scheme)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks of a few steps, in voices of any size."""
    for name, value in (("_FEWEST", 1), ("_AGAIN", 8.0), ("_WORTH", 0)):
        monkeypatch.setattr(chunks, name, value)


def _loops(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "Loop"]


def _steps(model: onnx.ModelProto) -> int:
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    return int(numpy_helper.to_array(tensors["tts_compress.chunks.steps"])[0])


def _operators(model: onnx.ModelProto) -> dict[str, bytes]:
    return {node.output[0]: node.SerializeToString() for node in model.graph.node}


def _weights(model: onnx.ModelProto) -> dict[str, bytes]:
    return {tensor.name: tensor.SerializeToString() for tensor in model.graph.initializer}


def _spoken(voice: Any, model: onnx.ModelProto) -> Iterator[Any]:
    """Yield the sounds of texts, on one thread with fed noise."""
    session = open_session(feed_noise(model), "m", threads=1)
    names = {value.name for value in session.get_inputs()}
    for feeds in voice.calibration_calls(_TEXTS, seed=0):
        yield session.run(None, {name: feeds[name] for name in names})[0]


@pytest.mark.slow
@pytest.mark.usefixtures("artifacts", "short")
@pytest.mark.parametrize("name", ["choir", "int8", "int8-dynamic"])
def test_every_sample_is_that_of_the_whole(
    request: pytest.FixtureRequest, compressed: Callable[[str], Path], name: str
) -> None:
    """An original with speakers, integers of fixed ranges, and integers of dynamic ones."""
    original = name == "choir"
    voice: Any = load(request.getfixturevalue("choir_path") if original else compressed(name))
    whole = voice.graph()
    looped = voice.in_chunks("", whole, voice.two_calls(""))
    assert len(_loops(looped)) == 1
    assert not _loops(whole), "the graph that was given is as it was"
    _check_joined(looped, whole)
    turns = 0
    for before, after in zip(_spoken(voice, whole), _spoken(voice, looped), strict=True):
        assert np.array_equal(before, after)
        turns = max(turns, before.shape[-1] // 32 // _steps(looped))
    assert turns > 2


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_an_artifact_is_read_in_one_piece_and_written_in_chunks(
    tiny: Any, quick_recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    """Whatever looks at layers finds them all; what plays the file has the loop."""
    voice: Any = compress(tiny, "int8", recipe=quick_recipe("int8"), quality="fast")
    written = onnx.load(voice.save(tmp_path / "a") / "tiny.onnx")
    read: Any = load(tmp_path / "a")
    assert len(_loops(written)) == 1
    for model in (voice.graph(), read.graph()):
        assert not _loops(model)
        assert not any("tts_compress.chunks" in node.name for node in model.graph.node)
    again = read.save(tmp_path / "b") / "tiny.onnx"
    assert again.read_bytes() == (tmp_path / "a" / "tiny.onnx").read_bytes()
    assert read.open_runtime(threads=1).speak("Good day.").duration_s > 0
    assert "ai.onnx.Loop" in check_runtime(read, "coreml").on_fallback
    assert read.source("") == tmp_path / "a" / "tiny.onnx"
    elsewhere = read._with(sessions=SimpleNamespace(provider="OpenVINOExecutionProvider"))
    assert not _loops(elsewhere.source("")), "OpenVINO's loops return no sound"


@pytest.mark.usefixtures("short")
def test_joined_is_the_graph_of_before() -> None:
    """Weights that others read, too, are copied into the loop and go again."""
    model, calls = _stretched(read_again="near")
    looped = in_chunks(model, calls, "audio", "m")
    assert len(_loops(looped)) == 1
    _check_joined(looped, model)


@pytest.mark.usefixtures("short")
def test_another_place_is_taken_where_chunks_behind_the_best_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The voice was left whole then, and took a fifth more memory than FP32."""
    steps, asked = chunks._steps, list[int]()

    def refused_once(field: Any, cut: int, *rest: Any) -> int | None:
        asked.append(cut)
        is_first_choice = len(asked) - len(set(asked)) == 1 and asked.count(cut) == 2
        return None if is_first_choice else steps(field, cut, *rest)

    monkeypatch.setattr(chunks, "_steps", refused_once)
    model, calls = _stretched()
    assert len(_loops(in_chunks(model, calls, "audio", "m"))) == 1
    assert len(asked) - len(set(asked)) == 2


def _check_joined(looped: onnx.ModelProto, whole: onnx.ModelProto) -> None:
    again = joined(looped)
    assert _operators(again) == _operators(whole)
    assert _weights(again) == _weights(whole)


def test_a_graph_of_little_memory_stays_as_it_is() -> None:
    model, calls = _stretched()
    assert in_chunks(model, calls, "audio", "m") is model


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("version", "output"), [(12, "audio"), (15, "volume")])
def test_old_operators_and_another_result_are_left_alone(version: int, output: str) -> None:
    """`Unsqueeze` took no axes before version 13."""
    model, calls = _stretched()
    model.opset_import[0].version = version
    assert in_chunks(model, calls, output, "m") is model


def _stretched(read_again: str = "", pads: int = _REACH) -> tuple[onnx.ModelProto, list[Any]]:
    """Return a graph that doubles the length between two convolutions, and inputs of two calls."""
    random = np.random.default_rng(0)
    weights = {
        "up": random.standard_normal((6, 4, 4)),
        "near": random.standard_normal((4, 4, 7)),
        "last": random.standard_normal((1, 4, 2 * _REACH + 1)),
    }
    nodes = [
        make_node("ConvTranspose", "x up", "wide", strides=[2]),
        make_node("Conv", "wide near", "near_out", pads=[9, 9], dilations=[3]),
        make_node("LeakyRelu", "near_out", "soft"),
        make_node("Conv", "soft last", "audio", pads=[pads, pads]),
    ]
    outputs: dict[str, Any] = {"audio": ["b", 1, "t"]}
    if read_again:
        nodes.append(make_node("ReduceMean", read_again, "mean", axes=[2]))
        outputs["mean"] = [None, 4, 1]
    model = make_model(nodes, {"x": ["b", 6, "n"]}, outputs, weights)
    calls = [{"x": random.standard_normal((1, 6, n)).astype(np.float32)} for n in (40, 90)]
    return model, calls


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("pads", [_REACH, 0])
def test_every_length_is_right(pads: int) -> None:
    """Shorter than a chunk, a step longer; with an end that no hop makes; with no padding."""
    model, calls = _stretched(pads=pads)
    looped = in_chunks(model, calls, "audio", "m")
    assert len(_loops(looped)) == 1
    whole, turns = (open_session(graph, "m", threads=1) for graph in (model, looped))
    random = np.random.default_rng(1)
    for length in range(_REACH, 4 * _steps(looped) + 30):
        feeds = {"x": random.standard_normal((1, 6, length)).astype(np.float32)}
        (before,), (after,) = whole.run(None, feeds), turns.run(None, feeds)
        assert before.shape == (1, 1, 2 * length + 2 * pads + 2 - 2 * _REACH)
        assert np.array_equal(before, after), length


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("last", ["Conv", "ConvTranspose"])
def test_every_last_bit_is_that_of_the_whole(last: str) -> None:
    """Values that fill no packet of 16 cosines, and products of one column, take other kernels."""
    random = np.random.default_rng(0)
    shapes = {"wide": (15, 4, 1), "last": (1, 15, 3) if last == "Conv" else (15, 1, 4)}
    weights = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    sides: dict[str, Any]
    curve, sides = ("Cos", {"pads": [1, 1]}) if last == "Conv" else ("Abs", {"strides": [4]})
    nodes = [
        make_node("Conv", "x wide", "angle"),
        make_node(curve, "angle", "curve"),
        make_node(last, "curve last", "audio", **sides),
    ]
    model = make_model(nodes, {"x": [1, 4, "n"]}, {"audio": [1, 1, "t"]}, weights)
    calls: Any = [{"x": random.standard_normal((1, 4, n)).astype(np.float32)} for n in (40, 90)]
    looped = in_chunks(model, calls, "audio", "m")
    assert len(_loops(looped)) == 1
    whole, turns = (open_session(graph, "m", threads=1) for graph in (model, looped))
    for length in range(1, 200):
        feeds = {"x": random.standard_normal((1, 4, length)).astype(np.float32)}
        assert np.array_equal(whole.run(None, feeds)[0], turns.run(None, feeds)[0]), length


@pytest.mark.usefixtures("short")
def test_a_loop_may_read_codes_that_were_turned() -> None:
    """Behind a `Transpose`, onnxruntime ends the process."""
    model, (call, _) = _stretched()
    scale, zero = np.float32(0.1), np.int8(0)
    for name, value in (("scale", scale), ("point", zero)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    nodes = [
        make_node("QuantizeLinear", "frames scale point", "codes"),
        make_node("DequantizeLinear", "codes scale point", "real"),
        make_node("Transpose", "real", "x", perm=[0, 2, 1]),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("frames", TensorProto.FLOAT, [1, "n", 6])
    )
    turned: Any = [{"frames": np.tile(call["x"].transpose(0, 2, 1), (1, n, 1))} for n in (1, 3)]
    looped = in_chunks(model, turned, "audio", "m")
    assert len(_loops(looped)) == 1
    (before,), (after,) = (run_model(graph, turned[1]) for graph in (model, looped))
    assert np.allclose(before, after, atol=1e-5)
    assert {node.op_type for node in joined(looped).graph.node} >= {"ConvTranspose", "Conv"}


@pytest.mark.usefixtures("short")
def test_an_inputs_own_value_stays_one() -> None:
    """In the loop it was a constant, whatever the caller gave."""
    model, (call, longer) = _stretched()
    model.graph.node[-1].output[0] = "plain"
    model.graph.node.append(make_node("Mul", "plain gain", "audio"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "gain"))
    model.graph.input.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, [1]))
    looped = in_chunks(model, [call, longer], "audio", "m")
    assert len(_loops(looped)) == 1
    for feeds in (longer, longer | {"gain": np.full(1, 3, np.float32)}):
        (before,), (after,) = (run_model(graph, feeds) for graph in (model, looped))
        assert np.array_equal(before, after)


@pytest.mark.usefixtures("short")
def test_what_is_read_beside_the_sound_stays_outside() -> None:
    """Only what follows it is in the loop."""
    model, calls = _stretched(read_again="wide")
    looped = in_chunks(model, calls, "audio", "m")
    outside = {name for node in looped.graph.node for name in node.output}
    assert {"wide", "mean"} <= outside
    assert "soft" not in outside
    pairs = [run_model(graph, calls[1]) for graph in (model, looped)]
    for before, after in zip(*pairs, strict=True):
        assert np.allclose(before, after, atol=1e-5)


@pytest.mark.usefixtures("short")
def test_operators_keep_their_order() -> None:
    """A recurrent one whose sequence nobody reads has no name for its first output."""
    model, calls = _stretched()
    weight = numpy_helper.from_array(np.full((1, 18, 6), 0.1, np.float32), "gates")
    model.graph.initializer.append(weight)
    nodes = []
    for source, result in (("frames", "half"), ("half", "x")):
        time, state = f"{source}/time", f"{result}/state"
        gru = make_node("GRU", f"{time} gates gates", state, hidden_size=6)
        gru.output[:] = ["", state]
        nodes += [make_node("Transpose", source, time, perm=[2, 0, 1]), gru]
        nodes.append(make_node("Transpose", state, f"{result}/turned", perm=[1, 2, 0]))
        nodes.append(make_node("Mul", f"{source} {result}/turned", result))
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    model.graph.input[0].name = "frames"
    looped = in_chunks(model, [{"frames": call["x"]} for call in calls], "audio", "m")
    assert len(_loops(looped)) == 1
    onnx.checker.check_model(looped)


@pytest.mark.parametrize("broken", ["outputs", "body", "slice"])
@pytest.mark.usefixtures("short")
def test_a_loop_of_that_name_that_is_another_stays(broken: str) -> None:
    """A file may say anything."""
    looped = in_chunks(*_stretched(), "audio", "m")
    (loop,) = _loops(looped)
    body = loop.attribute[0].g
    if broken == "outputs":
        del loop.output[:]
    elif broken == "body":
        del loop.attribute[:]
    else:
        body.node.remove(next(node for node in body.node if node.op_type == "Slice"))
    assert joined(looped) is looped


def test_memory_is_that_of_a_chunk(tmp_path: Path) -> None:
    """Ten seconds through two wide layers, in a process of its own."""
    random = np.random.default_rng(0)
    weights = {
        "first": random.standard_normal((32, 4, 3)),
        "second": random.standard_normal((32, 32, 3)),
        "last": random.standard_normal((1, 32, 3)),
    }
    names = ["x", "wide", "wider", "audio"]
    nodes = [
        make_node("Conv", f"{names[n]} {weight}", names[n + 1], pads=[1, 1])
        for n, weight in enumerate(weights)
    ]
    model = make_model(nodes, {"x": [1, 4, "n"]}, {"audio": [1, 1, "t"]}, weights)
    calls: Any = [{"x": np.zeros((1, 4, n), np.float32)} for n in (4000, 9000)]
    np.savez(tmp_path / "feeds.npz", x=random.standard_normal((1, 4, 220_000)).astype(np.float32))
    onnx.save(model, tmp_path / "whole")
    onnx.save(in_chunks(model, calls, "audio", "m"), tmp_path / "looped")
    whole, looped = (
        graph_bytes(tmp_path / name, tmp_path / "feeds.npz") for name in ("whole", "looped")
    )
    assert whole > 56e6  # two tensors of 28 MB
    assert looped < whole / 2
