"""A bare graph is trained on arrays that it is called with."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node
from tests.measures import snr_db

torch = pytest.importorskip("torch")

from tts_compress.compression import compress_trained  # noqa: E402
from tts_compress.compression.workbench import open_calibration  # noqa: E402
from tts_compress.errors import QuantizationError  # noqa: E402
from tts_compress.models import open_model  # noqa: E402
from tts_compress.models.base import OnnxGraph  # noqa: E402
from tts_compress.onnx.precision import length_outputs  # noqa: E402
from tts_compress.onnx.quantize.convert import convert, prepare_conversion  # noqa: E402
from tts_compress.onnx.session import open_session  # noqa: E402
from tts_compress.progress import Silent  # noqa: E402
from tts_compress.qat.graph.network import find_passage, last_part  # noqa: E402
from tts_compress.qat.graph.operators import is_trainable  # noqa: E402
from tts_compress.qat.graph.student import learned_conversion  # noqa: E402
from tts_compress.qat.graph.task import graph_task  # noqa: E402
from tts_compress.qat.options import TrainingOptions, TrainingRun  # noqa: E402
from tts_compress.qat.task import TrainingTask  # noqa: E402
from tts_compress.qat.trainer import read_log  # noqa: E402
from tts_compress.recipes.recipe import find_recipe  # noqa: E402

_LENGTHS = (90, 150, 40)


def _signal(length: int) -> Any:
    return np.random.default_rng(length).normal(size=(1, 8, length)).astype(np.float32)


@pytest.fixture
def make_task(vocoder: onnx.ModelProto, tmp_path: Path) -> Callable[..., TrainingTask]:
    """Return a function that opens a graph for training, on noise of several lengths."""

    def make(graph: onnx.ModelProto = vocoder, **settings: Any) -> TrainingTask:
        path = tmp_path / "vocoder.onnx"
        onnx.save(graph, path)
        feeds = {f"{i}/x": _signal(length) for i, length in enumerate(_LENGTHS)}
        np.savez(tmp_path / "feeds.npz", **feeds)
        model: Any = open_model(f"onnx:{path}")
        recipe = find_recipe("onnx", "int8-qat")
        rules = tuple(
            rule.model_copy(update={"skip_graph_inputs": False}) for rule in recipe.component
        )
        assert recipe.calibration is not None
        # Ranges that clip so much leave something to train.
        tight = recipe.calibration.model_copy(update={"percentile": 97.0})
        recipe = recipe.model_copy(update={"component": rules, "calibration": tight})
        calls, _ = open_calibration(model, tight, tmp_path / "feeds.npz", seed=0)
        conversion = prepare_conversion(
            model.graph, recipe, calls, batch_one=False, progress=Silent()
        )
        return graph_task(conversion, recipe, calls, sample_rate=None, **settings)

    return make


def _total(task: TrainingTask, student: Any) -> float:
    with torch.no_grad():
        return sum(float(sum(task.loss(student(*e.inputs), e).values())) for e in task.held_out)


def test_output_that_is_no_waveform_is_compared_by_its_square(
    make_task: Callable[..., TrainingTask],
) -> None:
    """Four values per frame are no sound yet; a difference counts in deviations of the output."""
    task = make_task()
    (example, *_) = task.train
    (target,) = example.targets
    terms = task.loss((target + target.std(),), example)
    assert set(terms) == {"post"}
    assert float(terms["post"]) == pytest.approx(1, rel=0.1)


def test_long_calls_are_cut_and_short_ones_stay_whole(
    make_task: Callable[..., TrainingTask],
) -> None:
    task = make_task(frames=32)
    (window,) = {e.inputs[0].shape[-1] for e in task.train}
    assert 5 < (window - 32) / 2 < 20
    assert [e.inputs[0].shape[-1] for e in task.held_out] == [40]


def test_outputs_that_do_not_follow_in_time_keep_calls_whole(
    make_task: Callable[..., TrainingTask], vocoder: onnx.ModelProto
) -> None:
    graph = onnx.ModelProto()
    graph.CopyFrom(vocoder)
    graph.graph.node.append(make_node("ReduceMean", "post", "average", axes=[2]))
    graph.graph.output[0].CopyFrom(helper.make_tensor_value_info("average", 1, None))
    task = make_task(graph)
    assert {e.inputs[0].shape[-1] for e in task.train} == {90, 150}


def test_training_brings_the_artifact_nearer_to_the_original(
    make_task: Callable[..., TrainingTask],
) -> None:
    task = make_task(frames=32, learned_ranges=True)
    student = copy.deepcopy(task.student)
    named = dict(student.named_parameters())
    ranges = [p for name, p in named.items() if name.endswith("log_stretch")]
    weights = [p for name, p in named.items() if not name.endswith("log_stretch")]
    optimizer = torch.optim.Adam(
        [{"params": weights, "lr": 1e-4}, {"params": ranges, "lr": 1e-2}],
    )
    for step in range(60):
        example = task.train[step % len(task.train)]
        optimizer.zero_grad()
        sum(task.loss(student(*example.inputs), example).values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    assert _total(task, student) < 0.8 * _total(task, task.student)
    signal = _signal(_LENGTHS[-1])  # the one that is held out
    answers = []
    teacher = task.converted.args[0]  # type: ignore[union-attr]
    for learned in (task.student, student):
        finished = convert(learned_conversion(teacher, learned))  # type: ignore[arg-type]
        answers.append(open_session(finished, "learned", 1).run(None, {"x": signal})[0])
    original = open_session(teacher.graph, "original", 1).run(None, {"x": signal})[0]
    assert snr_db(original, answers[1]) > snr_db(original, answers[0]) + 1


def test_a_graph_of_batch_one_is_trained_one_example_at_a_time(
    vocoder: onnx.ModelProto, tmp_path: Path
) -> None:
    fixed = copy.deepcopy(vocoder)
    (value,) = fixed.graph.input
    value.type.tensor_type.shape.dim[0].dim_value = 1
    shape = numpy_helper.from_array(np.array([1, 8, -1]), "shape")  # as exporters write it
    fixed.graph.initializer.append(shape)
    first = next(node for node in fixed.graph.node if "x" in node.input)
    fixed.graph.node.insert(0, make_node("Reshape", "x shape", "alone"))
    first.input[0] = "alone"
    onnx.save(fixed, tmp_path / "vocoder.onnx")
    np.savez(
        tmp_path / "feeds.npz", **{f"{i}/x": _signal(length) for i, length in enumerate(_LENGTHS)}
    )
    run = TrainingRun(options=TrainingOptions(steps=2, threads=1))
    model, feeds = open_model(f"onnx:{tmp_path / 'vocoder.onnx'}"), tmp_path / "feeds.npz"
    small: Any = compress_trained(model, "int8-qat", calibration=feeds, run=run)
    assert small.manifest.training.steps == 2


_CHANNELS = 32
_SIZES: list[str | int] = [1, _CHANNELS, "tokens"]

_UP = {"strides": [16], "pads": [8, 8]}


def _voice(*, local: bool = True) -> onnx.ModelProto:
    """Return a graph (1, 32, N) → (1, samples): an encoder, predicted frames, a decoder.

    Args:
        local: False for a decoder that each frame reaches everywhere in.
    """
    draw = np.random.default_rng(0)

    def weight(*shape: int, gain: float = 1.0) -> Any:
        scale = gain * np.prod(shape[1:]) ** -0.5
        return draw.normal(scale=scale, size=shape).astype(np.float32)

    constants: dict[str, Any] = {
        "net.encode.weight": weight(_CHANNELS, _CHANNELS, 3),
        # Frames from one to thirty or so: a little rounding moves some of them.
        "net.predict.weight": weight(1, _CHANNELS, 3, gain=4.0),
        "net.fill.weight": weight(_CHANNELS, _CHANNELS, 3),
        "net.decode.weight": weight(_CHANNELS, _CHANNELS, 5),
        "net.up.weight": weight(_CHANNELS, 1, 32, gain=0.2),
        "one": np.array(1, np.int64),
        "zero": np.array(0, np.int64),
        "axis": np.array(2, np.int64),
        "row": np.array([1], np.int64),
        "flat": np.array([-1], np.int64),
        "batch": np.array([1, -1], np.int64),
        "least": np.array(1, np.float32),
        "most": np.array(30, np.float32),
    }

    def conv(source: str, name: str, made: str, pad: int) -> onnx.NodeProto:
        return make_node(
            "Conv", f"{source} net.{name}.weight", made, f"/net/{name}/Conv", pads=[pad, pad]
        )

    last = "decoded" if local else "shares"
    nodes = [
        conv("x", "encode", "e", 1),
        make_node("Tanh", "e", "encoded"),
        conv("encoded", "predict", "p", 1),
        make_node("Exp", "p", "real"),
        make_node("Clip", "real least most", "clipped"),
        make_node("Round", "clipped", "frames"),
        make_node("Cast", "frames", "whole", to=TensorProto.INT64),
        make_node("Reshape", "whole flat", "counts"),
        make_node("CumSum", "counts zero", "ends"),
        make_node("Gather", "ends flat", "last"),
        make_node("Squeeze", "last", "total"),
        make_node("Range", "zero total one", "places"),
        make_node("Unsqueeze", "places row", "column"),
        make_node("GreaterOrEqual", "column ends", "behind"),
        make_node("Cast", "behind", "steps", to=TensorProto.INT64),
        make_node("ReduceSum", "steps row", "index", keepdims=0),
        conv("encoded", "fill", "filled", 1),
        make_node("Gather", "filled index", "spread", axis=2),
        conv("spread", "decode", "d", 2),
        make_node("Tanh", "d", "decoded"),
        *([] if local else [make_node("Softmax", "decoded", "shares", axis=2)]),
        make_node("ConvTranspose", f"{last} net.up.weight", "u", "/net/up/ConvTranspose", **_UP),
        make_node("Tanh", "u", "wave"),
        make_node("Reshape", "wave batch", "audio"),
    ]
    return make_model(nodes, {"x": _SIZES}, {"audio": [1, "samples"]}, constants, opset=17)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that trains the voice, and returns it with the number of updates."""

    def train(*, local: bool) -> tuple[OnnxGraph, int]:
        path, feeds, log = (tmp_path / name for name in ("voice.onnx", "feeds.npz", "log"))
        onnx.save(_voice(local=local), path)
        draw = np.random.default_rng(1)
        calls = [draw.normal(size=(1, _CHANNELS, 20)).astype(np.float32) for _ in range(6)]
        arrays: dict[str, Any] = {f"{place}/x": call for place, call in enumerate(calls)}
        np.savez(feeds, **arrays)
        options = TrainingOptions(steps=8, learning_rate=3e-3, held_out_every=4)
        run = TrainingRun(options=options, folder=log)
        small: Any = compress_trained(open_model(f"onnx:{path}"), calibration=feeds, run=run)
        return small, sum(event["event"] == "update" for event in read_log(log))

    return train


@pytest.mark.parametrize("local", [True, False])
def test_a_voice_learns_whose_lengths_rounding_moves(train: Any, *, local: bool) -> None:
    """Outputs of two lengths could not be compared."""
    small, updates = train(local=local)
    assert updates == 8
    assert small.manifest is not None
    assert small.manifest.counts.get("Conv int8/static")


def test_sound_begins_behind_the_tensor_that_all_of_it_passes() -> None:
    model = _voice()
    deciding = length_outputs(model)
    part = last_part(model, lambda node: deciding.isdisjoint(node.output), ["audio"])
    assert part.inputs == ["encoded", "ends", "total"]
    assert find_passage(part) == "spread"
    assert find_passage(last_part(model, lambda _: True, ["d"])) == "e"
    assert find_passage(last_part(model, lambda _: True, ["e"])) is None


_WIDTH, _UNITS = 32, 64


def _split_voice() -> onnx.ModelProto:
    """Return a graph (1, 32, T) with an LSTM between convolutions, and lengths as an output."""
    generator = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        scale = np.prod(shape[1:]) ** -0.5
        return generator.normal(scale=scale, size=shape).astype(np.float32)

    constants: dict[str, Any] = {
        "before": weight(_WIDTH, _WIDTH, 3),
        "w": weight(2, 4 * _UNITS, _WIDTH),
        "r": weight(2, 4 * _UNITS, _UNITS),
        "after": weight(_WIDTH, 2 * _UNITS, 5),
        "last": weight(_WIDTH, _WIDTH, 5),
        "flat": np.array([1, 2 * _UNITS, -1], np.int64),
    }
    nodes = [
        make_node("Conv", "x before", "a", "/net/before/Conv", pads=[1, 1]),
        make_node("Transpose", "a", "turned", perm=[2, 0, 1]),
        make_node(
            "LSTM",
            "turned w r",
            "states",
            "/net/lstm/LSTM",
            direction="bidirectional",
            hidden_size=_UNITS,
        ),
        make_node("Transpose", "states", "back", perm=[2, 1, 3, 0]),
        make_node("Reshape", "back flat", "h"),
        make_node("Conv", "h after", "b", "/net/after/Conv", pads=[2, 2]),
        make_node("Tanh", "b", "c"),
        make_node("Conv", "c last", "y", "/net/last/Conv", pads=[2, 2]),
        make_node("Shape", "x", "lengths"),
    ]
    sizes: list[str | int] = [1, _WIDTH, "t"]
    return make_model(
        nodes, {"x": sizes}, {"y": sizes, "lengths": (TensorProto.INT64, [3])}, constants, opset=17
    )


def test_the_part_begins_behind_what_torch_cannot_compute() -> None:
    part = last_part(_split_voice(), is_trainable, ["y"])
    assert part.inputs == ["states"]
    assert [node.op_type for node in part.model.graph.node if "/net/" in node.name] == [
        "Conv",
        "Conv",
    ]
    whole = last_part(_split_voice(), lambda _: True, ["y"])
    assert whole.inputs == ["x"]
    with pytest.raises(QuantizationError, match="output 'y' is made by an operator that cannot"):
        last_part(_split_voice(), lambda node: node.name != "/net/last/Conv", ["y"])


def test_it_is_trained_and_the_rest_is_compressed_all_the_same(tmp_path: Path) -> None:
    path, feeds = tmp_path / "voice.onnx", tmp_path / "feeds.npz"
    onnx.save(_split_voice(), path)
    generator = np.random.default_rng(1)
    calls = [generator.normal(size=(1, _WIDTH, 50)).astype(np.float32) for _ in range(6)]
    arrays: dict[str, Any] = {f"{place}/x": call for place, call in enumerate(calls)}
    np.savez(feeds, **arrays)
    run = TrainingRun(options=TrainingOptions(steps=4))
    small: Any = compress_trained(
        open_model(f"onnx:{path}"), "int8-qat", calibration=feeds, run=run
    )
    graph = small.graph()
    kinds = {node.op_type for node in graph.graph.node}
    assert "DynamicQuantizeLSTM" in kinds
    assert kinds & {"QLinearConv", "MatMulIntegerToFloat"}
    expected, found = (
        open_session(model, "a voice").run(["y"], {"x": calls[0]})[0]
        for model in (_split_voice(), graph)
    )
    assert np.square(found - expected).mean() < 0.05 * np.square(expected).mean()
