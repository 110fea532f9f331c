"""A Piper voice is trained on its own outputs: its inputs, its targets and the result."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.measures import snr_db

torch = pytest.importorskip("torch")

from tts_compress.artifact import TrainingRecord  # noqa: E402
from tts_compress.compression import compress  # noqa: E402
from tts_compress.compression.workbench import describe, open_calibration  # noqa: E402
from tts_compress.errors import QuantizationError  # noqa: E402
from tts_compress.models import load  # noqa: E402
from tts_compress.models.base import GraphModel  # noqa: E402
from tts_compress.onnx.quantize.collect import Calls  # noqa: E402
from tts_compress.onnx.quantize.convert import convert, prepare_conversion  # noqa: E402
from tts_compress.progress import Silent  # noqa: E402
from tts_compress.qat.fake_quantize import switch_fake_quant  # noqa: E402
from tts_compress.qat.graph.student import learned_conversion  # noqa: E402
from tts_compress.qat.graph.task import graph_task  # noqa: E402
from tts_compress.qat.task import Example, TrainingTask, joined  # noqa: E402
from tts_compress.recipes.recipe import find_recipe  # noqa: E402

if TYPE_CHECKING:
    from torch import nn

    from tts_compress.recipes.recipe import Recipe

_TEXT = "A quick test."


@pytest.fixture(scope="module")
def recipe(quick_recipe: Callable[[str], Path]) -> Recipe:
    """Return the recipe of `int8-qat`, on three texts and for narrow layers, too."""
    found = find_recipe("piper", "int8-qat", quick_recipe("int8-qat"))
    rules = tuple(rule.model_copy(update={"min_channels": 1}) for rule in found.component)
    assert found.calibration is not None
    # Ranges that clip so much leave something to train.
    tight = found.calibration.model_copy(update={"percentile": 99.0})
    return found.model_copy(update={"component": rules, "calibration": tight})


@pytest.fixture(scope="module")
def make_task(recipe: Recipe) -> Callable[..., TrainingTask]:
    """Return a function that opens a voice for training."""

    def make(voice: Any) -> TrainingTask:
        assert isinstance(voice, GraphModel)
        assert recipe.calibration is not None
        calls, _ = open_calibration(voice, recipe.calibration, None, seed=0)
        return _task(voice, recipe, calls)

    return make


def _task(voice: GraphModel, recipe: Recipe, calls: Calls) -> TrainingTask:
    conversion = prepare_conversion(voice.graph, recipe, calls, batch_one=True, progress=Silent())
    return graph_task(conversion, recipe, calls, sample_rate=voice.sample_rate, frames=16)


@pytest.fixture(scope="module")
def task(make_task: Callable[..., TrainingTask], tiny: GraphModel) -> TrainingTask:
    """Return the tiny voice as a task."""
    return make_task(tiny)


def _loss(task: TrainingTask, student: nn.Module, examples: Sequence[Example]) -> dict[str, float]:
    totals: dict[str, float] = {}
    with torch.no_grad():
        for example in examples:
            for name, term in task.loss(student(*example.inputs), example).items():
                totals[name] = totals.get(name, 0.0) + float(term) / len(examples)
    return totals


@pytest.mark.slow
def test_terms_of_the_loss_are_named(task: TrainingTask) -> None:
    assert set(_loss(task, task.student, task.held_out[:1])) == {
        *("flow", "decoder", "decoder log-mel")
    }


def test_segments_are_of_one_length_and_cover_every_frame(task: TrainingTask) -> None:
    segments = task.train
    ((channels, window),) = {tuple(e.inputs[0].shape[1:]) for e in segments}
    assert channels == 16
    assert {e.targets[1].shape[-1] for e in segments} == {window * 256}


@pytest.mark.slow
def test_segments_have_all_the_context_that_is_heard(task: TrainingTask) -> None:
    """Without rounding a segment's core equals the output of the whole call there."""
    student = copy.deepcopy(task.student)
    switch_fake_quant(student, on=False)
    rounded = _loss(task, task.student, task.train)
    for name, value in _loss(task, student, task.train).items():
        assert value < rounded[name] / 20, name


def test_what_is_held_out_is_not_trained_on(task: TrainingTask) -> None:
    learned = [e.inputs[0] for e in task.train]
    for example in task.held_out:
        assert not any(torch.equal(example.inputs[0], other) for other in learned)


@pytest.mark.slow
def test_same_seed_gives_the_same_examples(
    make_task: Callable[..., TrainingTask], task: TrainingTask, tiny: GraphModel
) -> None:
    again = make_task(tiny)
    for one, two in zip(task.train, again.train, strict=True):
        assert all(map(torch.equal, one.inputs + one.targets, two.inputs + two.targets))


def test_flow_counts_in_deviations_of_the_prior(task: TrainingTask) -> None:
    example = task.train[0]
    latent, audio, deviation = example.targets
    for factor in (1.0, 3.0):
        outputs = (latent + factor * deviation.clamp_min(1e-3), audio)
        terms = task.loss(outputs, example)
        assert float(terms["flow"]) == pytest.approx(factor**2, rel=1e-3)
        assert float(terms["decoder"]) == 0


def test_one_call_is_too_few(task: TrainingTask, tiny: GraphModel, recipe: Recipe) -> None:
    call = Calls(lambda: tiny.calibration_calls([_TEXT], seed=0), 1)
    with pytest.raises(QuantizationError, match="1 calls to train on; give 2 or more"):
        graph_task(_conversion(task), recipe, call, sample_rate=tiny.sample_rate, frames=16)


def test_it_is_judged_by_the_artifact(task: TrainingTask) -> None:
    """The student rounds as the artifact does, if not every value to the same side."""
    example = task.held_out[0]
    with torch.no_grad():
        trained = task.student(*example.inputs)
    assert task.converted is not None
    judged = task.converted(task.student)(*example.inputs)
    assert snr_db(judged[0].numpy(), trained[0].numpy()) > 40
    losses = [float(sum(task.loss(made, example).values())) for made in (trained, judged)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def _conversion(task: TrainingTask) -> Any:
    """Return the teacher that a task was made of."""
    return task.converted.args[0]  # type: ignore[union-attr]


def _train(task: TrainingTask, steps: int) -> nn.Module:
    student = copy.deepcopy(task.student)
    named = dict(student.named_parameters())
    ranges = [p for name, p in named.items() if name.endswith("log_stretch")]
    weights = [p for name, p in named.items() if not name.endswith("log_stretch")]
    # A range is worth many weights, and is far from where it should be here.
    groups = [{"params": weights, "lr": 3e-5}, {"params": ranges, "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups)
    examples = task.train
    for step in range(steps):
        example = examples[step % len(examples)]
        optimizer.zero_grad()
        sum(task.loss(student(*example.inputs), example).values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    return student


@pytest.mark.slow
def test_trained_voice_is_nearer_to_its_teacher_and_plays(
    task: TrainingTask, tiny: GraphModel, recipe: Recipe, tmp_path: Path
) -> None:
    before = _loss(task, task.student, task.held_out)
    student = _train(task, 20)
    after = _loss(task, student, task.held_out)
    assert sum(after.values()) < 0.9 * sum(before.values())
    training = TrainingRecord(steps=20, seed=0, before=before, after=after)
    learned = learned_conversion(_conversion(task), student)  # type: ignore[arg-type]
    manifest = describe(tiny, recipe, learned, calibration=None, training=training, seed=0)
    folder = tiny.with_graphs({"": convert(learned)}, manifest).save(tmp_path / "trained")
    trained = load(folder)
    spoken = trained.open_runtime(threads=1).speak(_TEXT).samples
    assert np.isfinite(spoken).all()
    assert spoken.std() > 0.01
    plain = compress(tiny, "int8", recipe=recipe.model_copy(update={"scheme": "int8"}))
    for seed in (0, 1):
        expected = plain.synthesize(_TEXT, seed=seed).durations
        np.testing.assert_array_equal(trained.synthesize(_TEXT, seed=seed).durations, expected)


@pytest.mark.slow
def test_checkpoint_trains_as_its_export(
    make_task: Callable[..., TrainingTask],
    task: TrainingTask,
    tiny_checkpoint: Path,
    few_flows: Callable[[], AbstractContextManager[None]],
) -> None:
    with few_flows():
        other = make_task(load(tiny_checkpoint))
    first, same = task.train[0], other.train[0]
    assert all(map(torch.equal, first.inputs + first.targets, same.inputs + same.targets))


@pytest.mark.slow
def test_several_speakers_are_trained_and_judged(
    choir_path: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """Every eighth text of two speakers is the same one's; those held out are of both."""
    shutil.copy(choir_path, tmp_path)
    config = json.loads(choir_path.with_name("choir.onnx.json").read_text("utf-8"))
    changed = config | {"num_speakers": 2, "speaker_id_map": {"anna": 0, "ben": 1}}
    (tmp_path / "choir.onnx.json").write_text(json.dumps(changed), "utf-8")
    voice: Any = load(tmp_path / "choir.onnx")
    calls = Calls(lambda: voice.calibration_calls(16 * ["Good day."], seed=0), 16)
    task = _task(voice, recipe, calls)
    assert {int(example.inputs[1]) for example in task.held_out} == {0, 1}
    assert {int(example.inputs[1]) for example in task.train} == {0, 1}
    prior = task.train[0].inputs[0]
    pair = [Example(inputs=(prior, torch.tensor([speaker])), targets=()) for speaker in (0, 1)]
    ((both, count),) = joined(pair)
    assert count == 2
    with torch.no_grad():
        together = task.student(*both.inputs)
        for place, example in enumerate(pair):
            for found, alone in zip(together, task.student(*example.inputs), strict=True):
                assert torch.allclose(found[place : place + 1], alone, atol=1e-4)
        assert not torch.allclose(together[1][0], together[1][1], atol=1e-3)
