"""One component's examples: whole calls, chunks of them, and the loss on them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tts_compress import find_recipe
from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.base import Call, Objective
from tts_compress.qat.fake_quantize import switch_fake_quant
from tts_compress.qat.prepare import prepare_qat
from tts_compress.qat.task import (
    TrainingTask,
    compared_outputs,
    held_out_indices,
    joined,
    kl_divergence,
    waveform_loss,
)
from tts_compress.qat.training import RecordedCalls, call_task, module_task


def _task(objective: Objective, teacher: nn.Module, call: Call) -> TrainingTask:
    student = prepare_qat(teacher, find_recipe("module", "int4-weight-only")).module
    dataset = RecordedCalls(objective=objective, train=[call], held_out=[call])
    component = student.get_submodule(objective.module)
    return call_task(dataset, teacher, component, sample_rate=16_000)


class Vocoder(nn.Module):
    """Four samples for each frame, in a voice that is the same for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(64, 1, 8, stride=4, padding=2)

    def forward(self, mel: Tensor, *, voice: Tensor) -> Tensor:
        """Return `[batch, 1, 4 * frames]` of `[batch, 64, frames]` and `[batch, 64, 1]`."""
        return 0.3 * torch.tanh(self.up(mel + voice))


def _vocoder_task(frames: int) -> TrainingTask:
    torch.manual_seed(0)
    teacher = nn.ModuleDict({"vocoder": Vocoder()}).eval()
    mel, voice = torch.randn(1, 64, frames), torch.randn(1, 64, 1)
    with torch.no_grad():
        output = teacher["vocoder"](mel, voice=voice)
    call = Call(arguments=(mel,), keywords={"voice": voice}, output=output)
    return _task(Objective(module="vocoder", loss="waveform"), teacher, call)


def test_samples_are_made_in_chunks_that_cover_the_sentence() -> None:
    whole = _vocoder_task(128).train
    assert [example.inputs[1].shape for example in whole] == [(1, 64, 128)]
    for frames, chunks in ((129, 2), (256, 2), (300, 3)):
        task = _vocoder_task(frames)
        examples = task.train
        assert [tuple(e.inputs[1].shape) for e in examples] == [(1, 64, 128)] * chunks
        assert all(e.inputs[2].shape == (1, 64, 1) for e in examples)
        assert all(e.targets[0].shape == (1, 1, 512) for e in examples)
        ends = [e.inputs[1][0, 0] for e in examples]
        full = torch.cat([*ends[:-1], ends[-1][-(frames - 128 * (chunks - 1)) :]])
        assert torch.unique(full).numel() == frames


def test_a_prior_counts_in_units_of_its_deviation() -> None:
    class Prior(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Linear(64, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.mean(x), torch.tensor([[0.0, 2.0]]).expand(len(x), 2)

    root = nn.ModuleDict({"prior": Prior()}).eval()
    x = torch.randn(3, 64)
    with torch.no_grad():
        call = Call(arguments=(x,), keywords={}, output=root["prior"](x))
    objective = Objective(module="prior", loss="mse", log_deviation=1)
    task = _task(objective, root, call)
    (example,) = task.train
    mean, log = example.targets
    for column, expected in ((0, 0.5), (1, 0.5 * np.exp(-4))):
        moved = mean.clone()
        moved[:, column] += 1
        assert float(task.loss((moved, log), example)["mse"]) == pytest.approx(expected)
    assert float(task.loss((mean, log + 1), example)["mse"]) == pytest.approx(1)


def test_only_steps_of_speech_count() -> None:
    objective = Objective(module="decoder", loss="kl", steps_of="ids")
    scores = torch.arange(10.0).view(1, 5, 2)
    (counted,) = compared_outputs(objective, scores, {"ids": torch.zeros(9, 3)})
    assert torch.equal(counted, scores[:, -3:])
    assert compared_outputs(objective, scores)[0] is scores


def test_examples_stay_as_they_are_whatever_a_component_does_to_its_inputs() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            x += 1
            answer: Tensor = self.layer(x)
            return answer

    root = nn.ModuleDict({"part": Changing()}).eval()
    x = torch.randn(2, 64)
    with torch.no_grad():
        call = Call(arguments=(x.clone(),), keywords={}, output=root["part"](x.clone()))
    task = _task(Objective(module="part", loss="mse"), root, call)
    (example,) = task.train
    task.student(*example.inputs)
    assert torch.equal(example.inputs[1], x)


def test_every_eighth_example_is_held_out() -> None:
    assert held_out_indices(24) == [7, 15, 23]
    assert held_out_indices(3) == [2]


class Speech(nn.Module):
    """An encoder and a decoder that return a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(16, 16, 3, padding=1)
        self.decoder = nn.ConvTranspose1d(16, 1, 8, stride=4, padding=2)

    def forward(self, mel: Tensor, *, loud: float = 1.0, turns: int = 1) -> dict[str, Any]:
        """Return samples `[batch, 1, 4 * frames]` and their number."""
        for _ in range(turns):
            hidden = torch.relu(self.encoder(mel))
        return {"audio": torch.tanh(self.decoder(hidden)) * loud, "length": mel.shape[-1] * 4}


def _mels(count: int = 8) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(1, 16, 12 + i, generator=source) for i in range(count)]


def _module_task(
    batches: Any = None, teacher: nn.Module | None = None, **options: Any
) -> TrainingTask:
    torch.manual_seed(0)
    teacher = teacher or Speech()
    student = prepare_qat(teacher, find_recipe("module", "int8-dynamic")).module
    return module_task(teacher, student, _mels() if batches is None else batches, **options)


def test_targets_are_the_teachers_answers() -> None:
    task = _module_task()
    torch.manual_seed(0)
    teacher = Speech()
    for example in (*task.train, *task.held_out):
        (_, mel), (audio,) = example.inputs, example.targets
        assert torch.equal(audio, teacher(mel)["audio"])
        assert not audio.requires_grad


def test_batches_are_split_by_the_seed() -> None:
    def lengths(examples: Any) -> list[int]:
        return [example.inputs[1].shape[-1] for example in examples]

    task = _module_task(held_out=0.25)
    train, held_out = lengths(task.train), lengths(task.held_out)
    assert len(held_out) == 2
    assert sorted(train + held_out) == list(range(12, 20))
    assert lengths(_module_task(held_out=0.25).held_out) == held_out
    splits = {tuple(lengths(_module_task(seed=s).held_out)) for s in range(9)}
    assert len(splits) > 1
    assert len(_module_task(_mels(2), held_out=0.9).train) == 1
    assert len(_module_task(_mels(2), held_out=0.0).held_out) == 1


class _Steps(nn.Module):
    """A recurrent layer on `[time, batch, 64]`."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.layer = nn.Linear(64, 64), nn.GRU(64, 64)

    def forward(self, values: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(self.input(values))[0])


@pytest.mark.parametrize(
    ("teacher", "shape", "sizes"),
    [
        (_Steps(), (1, 3, 64), [1] * 6),
        (nn.Conv1d(1, 1, 9, padding=4), (1, 40), [1] * 6),
        (nn.Linear(64, 64), (1, 64), [6]),
    ],
    ids=["time", "channel", "batch"],
)
def test_only_what_is_a_batch_is_joined(
    teacher: nn.Module, shape: tuple[int, ...], sizes: list[int]
) -> None:
    """Steps of several examples were one sequence, and a channel of each made too many."""
    torch.manual_seed(0)
    student = prepare_qat(teacher, find_recipe("module", "int8-weight-only")).module
    task = module_task(teacher.eval(), student, [torch.randn(shape) for _ in range(7)])
    switch_fake_quant(student, on=False)
    assert [size for _, size in joined(task.train)] == sizes
    for batch, _ in joined(task.train):
        torch.testing.assert_close(task.student(*batch.inputs), batch.targets)


def test_the_student_answers_with_tensors_and_its_loss_vanishes_unrounded() -> None:
    task = _module_task()
    example = task.held_out[0]
    outputs = task.student(*example.inputs)
    assert [tuple(o.shape) for o in outputs] == [tuple(t.shape) for t in example.targets]
    terms = task.loss(outputs, example)
    assert set(terms) == {"output/mse"}
    assert all(term > 0 for term in terms.values())
    switch_fake_quant(task.student, on=False)
    assert sum(task.loss(task.student(*example.inputs), example).values()) < 1e-8


def test_squared_differences_are_in_units_of_the_teachers_variance() -> None:
    """A decoder with outputs ten times as loud has the same loss."""
    losses = []
    for loud in (1.0, 10.0):
        task = _module_task([{"mel": mel, "loud": loud} for mel in _mels()])
        example = task.train[0]
        outputs = (example.targets[0] + 0.1 * loud,)
        losses.append(float(task.loss(outputs, example)["output/mse"]))
    audio = torch.cat([e.targets[0].flatten() for e in _module_task().train])
    assert losses[0] == pytest.approx(0.01 / float(audio.var(correction=0)), rel=1e-4)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(("loss", "function"), [("waveform", waveform_loss), ("kl", kl_divergence)])
def test_other_losses_are_as_they_are(loss: str, function: Any) -> None:
    task = _module_task(loss=loss)
    example = task.train[0]
    outputs = task.student(*example.inputs)
    found = task.loss(outputs, example)[f"output/{loss}"]
    torch.testing.assert_close(found, function(outputs[0], example.targets[0]))


def test_batches_are_tensors_tuples_or_dictionaries() -> None:
    expected = _module_task().train
    for batches in ([(mel,) for mel in _mels()], [{"mel": mel} for mel in _mels()]):
        for found, meant in zip(_module_task(batches).train, expected, strict=True):
            assert torch.equal(found.targets[0], meant.targets[0])


def test_batches_that_cannot_be_trained_on_are_refused() -> None:
    with pytest.raises(RecipeError, match="1 batches to train on"):
        _module_task(_mels(1))
    with pytest.raises(RecipeError, match="holds no tensor"):
        _module_task([{"loud": 1.0}, {"loud": 1.0}])
    mels = _mels(2)
    with pytest.raises(RecipeError, match="batch 1 and batch 0 differ"):
        _module_task([{"mel": mels[0], "loud": 1.0}, {"mel": mels[1], "loud": 2.0}])


def test_a_teacher_that_draws_noise_of_its_own_is_refused() -> None:
    class Noisy(Speech):
        def forward(self, mel: Tensor, **options: Any) -> dict[str, Any]:
            """Return audio that is never the same."""
            return super().forward(mel + torch.randn_like(mel), **options)

    with pytest.raises(ModelError, match="the module returns something else when a call is rep"):
        _module_task(teacher=Noisy())
