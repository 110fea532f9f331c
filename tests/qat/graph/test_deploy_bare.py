"""A bare graph is trained on arrays that it is called with."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graphs import make_node
from tests.measures import snr_db

torch = pytest.importorskip("torch")

from tts_compress.compression import compress_trained  # noqa: E402
from tts_compress.compression.workbench import open_calibration  # noqa: E402
from tts_compress.models import open_model  # noqa: E402
from tts_compress.models.base import OnnxGraph  # noqa: E402
from tts_compress.onnx.quantize.convert import convert, prepare_conversion  # noqa: E402
from tts_compress.onnx.session import open_session  # noqa: E402
from tts_compress.progress import Silent  # noqa: E402
from tts_compress.qat.graph.student import learned_conversion  # noqa: E402
from tts_compress.qat.graph.task import graph_task  # noqa: E402
from tts_compress.qat.options import TrainingOptions, TrainingRun  # noqa: E402
from tts_compress.qat.task import TrainingTask  # noqa: E402
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
        model = open_model(f"onnx:{path}")
        assert isinstance(model, OnnxGraph)
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
    small = compress_trained(model, "int8-qat", calibration=feeds, run=run)
    assert isinstance(small, OnnxGraph)
    assert small.manifest is not None
    assert small.manifest.training is not None
    assert small.manifest.training.steps == 2
