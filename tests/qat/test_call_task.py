"""One component's examples: whole calls, chunks of them, and the loss on them."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tts_compress import find_recipe
from tts_compress.models.base import Call, Objective
from tts_compress.qat.prepare import prepare_qat
from tts_compress.qat.task import TrainingTask, compared_outputs, held_out_indices
from tts_compress.qat.training import RecordedCalls, call_task


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
