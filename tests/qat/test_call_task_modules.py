"""Training data of any module: the teacher's outputs, split once and for all."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tts_compress import find_recipe
from tts_compress.errors import ModelError, RecipeError
from tts_compress.qat.fake_quantize import switch_fake_quant
from tts_compress.qat.prepare import prepare_qat
from tts_compress.qat.task import TrainingTask, kl_divergence, waveform_loss
from tts_compress.qat.training import module_task


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


def _task(batches: Any = None, teacher: nn.Module | None = None, **options: Any) -> TrainingTask:
    torch.manual_seed(0)
    teacher = teacher or Speech()
    student = prepare_qat(teacher, find_recipe("module", "int8-dynamic")).module
    return module_task(teacher, student, _mels() if batches is None else batches, **options)


def test_targets_are_the_teachers_answers() -> None:
    task = _task()
    torch.manual_seed(0)
    teacher = Speech()
    for example in (*task.train, *task.held_out):
        (_, mel), (audio,) = example.inputs, example.targets
        assert torch.equal(audio, teacher(mel)["audio"])
        assert not audio.requires_grad


def test_batches_are_split_by_the_seed() -> None:
    def lengths(examples: Any) -> list[int]:
        return [example.inputs[1].shape[-1] for example in examples]

    task = _task(held_out=0.25)
    train, held_out = lengths(task.train), lengths(task.held_out)
    assert len(held_out) == 2
    assert sorted(train + held_out) == list(range(12, 20))
    assert lengths(_task(held_out=0.25).held_out) == held_out
    splits = {tuple(lengths(_task(seed=s).held_out)) for s in range(9)}
    assert len(splits) > 1
    assert len(_task(_mels(2), held_out=0.9).train) == 1
    assert len(_task(_mels(2), held_out=0.0).held_out) == 1


def test_the_student_answers_with_tensors_and_its_loss_vanishes_unrounded() -> None:
    task = _task()
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
        task = _task([{"mel": mel, "loud": loud} for mel in _mels()])
        example = task.train[0]
        outputs = (example.targets[0] + 0.1 * loud,)
        losses.append(float(task.loss(outputs, example)["output/mse"]))
    audio = torch.cat([e.targets[0].flatten() for e in _task().train])
    assert losses[0] == pytest.approx(0.01 / float(audio.var(correction=0)), rel=1e-4)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(("loss", "function"), [("waveform", waveform_loss), ("kl", kl_divergence)])
def test_other_losses_are_as_they_are(loss: str, function: Any) -> None:
    task = _task(loss=loss)
    example = task.train[0]
    outputs = task.student(*example.inputs)
    found = task.loss(outputs, example)[f"output/{loss}"]
    torch.testing.assert_close(found, function(outputs[0], example.targets[0]))


def test_gradients_reach_every_weight() -> None:
    task = _task()
    example = task.train[0]
    terms = task.loss(task.student(*example.inputs), example)
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in task.student.parameters())


def test_batches_are_tensors_tuples_or_dictionaries() -> None:
    expected = _task().train
    for batches in ([(mel,) for mel in _mels()], [{"mel": mel} for mel in _mels()]):
        for found, meant in zip(_task(batches).train, expected, strict=True):
            assert torch.equal(found.targets[0], meant.targets[0])


def test_batches_that_cannot_be_trained_on_are_refused() -> None:
    with pytest.raises(RecipeError, match="1 batches to train on"):
        _task(_mels(1))
    with pytest.raises(RecipeError, match="holds no tensor"):
        _task([{"loud": 1.0}, {"loud": 1.0}])
    mels = _mels(2)
    with pytest.raises(RecipeError, match="batch 1 and batch 0 differ"):
        _task([{"mel": mels[0], "loud": 1.0}, {"mel": mels[1], "loud": 2.0}])


def test_a_teacher_that_draws_noise_of_its_own_is_refused() -> None:
    class Noisy(Speech):
        def forward(self, mel: Tensor, **options: Any) -> dict[str, Any]:
            """Return audio that is never the same."""
            return super().forward(mel + torch.randn_like(mel), **options)

    with pytest.raises(ModelError, match="the module returns something else when a call is rep"):
        _task(teacher=Noisy())
