"""Losses against other code that computes the same, and at the edges of what they are given."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tts_compress.errors import TTSCompressError
from tts_compress.models.base import Objective

torch = pytest.importorskip("torch")
losses = pytest.importorskip("tts_compress.qat.task")


def _normal(seed: int, *shape: int) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return torch.from_numpy(values)


def test_kl_is_in_the_direction_of_evaluation() -> None:
    """The divergence that is trained on is the one that the report shows."""
    from tts_compress.evaluation.metrics.teacher_forcing import compare_scores

    student, teacher = _normal(1, 5, 2, 9), _normal(2, 5, 2, 9)
    chosen = np.ones((5, 2), bool)
    wanted = compare_scores([(teacher.numpy(), student.numpy(), chosen)]).kl_nats
    assert float(losses.kl_divergence(student, teacher)) == pytest.approx(wanted, rel=1e-5)


def test_a_token_that_the_teacher_rules_out_does_not_count() -> None:
    student, teacher = _normal(1, 4, 6).requires_grad_(), _normal(2, 4, 6)
    teacher[:, 2] = -math.inf
    with torch.no_grad():
        student[0, 2] = -math.inf  # both may
    loss = losses.kl_divergence(student, teacher)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(student.grad[1:]).all()


def test_mse_is_torchs() -> None:
    student, teacher = _normal(1, 4, 5), _normal(2, 4, 5)
    wanted = torch.nn.functional.mse_loss(student, teacher)
    torch.testing.assert_close(losses.mse(student, teacher), wanted)


def test_halves_are_compared_in_single_precision() -> None:
    student = torch.full((4,), 300.0, dtype=torch.float16)  # its square has no half
    assert float(losses.mse(student, torch.zeros(4))) == 90_000.0


def _log_spectrum(samples: npt.NDArray[np.float64], window: int) -> npt.NDArray[np.float64]:
    """Return frames' log magnitudes by numpy's FFT: centred, zeros outside, periodic Hann."""
    padded = np.pad(samples, window // 2)
    shape = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    starts = range(0, len(padded) - window + 1, window // 4)
    frames = [np.fft.rfft(shape * padded[start : start + window]) for start in starts]
    found: npt.NDArray[np.float64] = np.log(
        np.maximum(np.abs(frames), 1e-3 * window / 4)  # 60 dB below a full-scale sine
    )
    return found


def test_the_waveform_loss_is_what_numpy_computes() -> None:
    student, teacher = _normal(1, 3000) * 0.1, _normal(2, 3000) * 0.1
    pair = [x.double().numpy() for x in (student, teacher)]
    spectral = [
        np.abs(_log_spectrum(pair[0], n) - _log_spectrum(pair[1], n)).mean()
        for n in (512, 1024, 2048)
    ]
    wanted = np.abs(pair[0] - pair[1]).mean() + np.mean(spectral)
    found = losses.waveform_loss(student[None, None], teacher[None, None])
    assert float(found) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("length", [1, 100, 5000])
def test_a_waveform_of_any_length_and_silence_have_finite_gradients(length: int) -> None:
    student = torch.zeros(2, length, requires_grad=True)
    loss = losses.waveform_loss(student, torch.full((2, length), 0.1))
    loss.backward()
    assert float(loss.detach()) > 0
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("kind", ["kl", "mse", "waveform"])
def test_equal_outputs_have_no_distance_and_teachers_no_gradient(kind: Any) -> None:
    objective = Objective(module="c", loss=kind)

    def distance(students: list[Any], teachers: list[Any], rate: int | None = None) -> Any:
        terms = losses.objective_terms(objective, students, teachers, [1.0] * len(students), rate)
        return torch.stack(list(terms.values())).sum()

    student, teacher = _normal(1, 2, 800), _normal(2, 2, 800).requires_grad_()
    assert float(distance([student], [student], 16_000)) == pytest.approx(0, abs=1e-6)
    several = distance([student, student], [teacher, teacher])
    once = distance([student.requires_grad_()], [teacher])
    torch.testing.assert_close(several, 2 * once)
    once.backward()
    assert student.grad.abs().sum() > 0
    assert teacher.grad is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: losses.mse(torch.ones(2), torch.ones(3)), r"\(2,\) and \(3,\)"),
        (lambda: losses.kl_divergence(torch.ones(0, 3), torch.ones(0, 3)), "not empty"),
    ],
    ids=["shapes", "empty"],
)
def test_what_cannot_be_compared_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(TTSCompressError, match=says):
        make()


def test_log_mel_counts_loudness_in_nats_and_no_hiss() -> None:
    time = torch.arange(16_000) / 16_000
    voice = (0.3 * torch.sin(2 * torch.pi * 440 * time))[None, None]
    assert float(losses.log_mel_loss(voice, voice, sample_rate=16_000)) == 0
    noise = torch.randn(voice.shape, generator=torch.Generator().manual_seed(0))
    hiss = float(losses.log_mel_loss(voice + 1e-4 * noise, voice, sample_rate=16_000))
    assert hiss < float(losses.log_mel_loss(voice + 1e-2 * noise, voice, sample_rate=16_000)) / 20
    # Noise is in every band: all are half as loud.
    quieter = losses.log_mel_loss(noise / 2, noise, sample_rate=16_000)
    assert float(quieter) == pytest.approx(0.693, abs=0.001)


def test_log_mel_takes_outputs_shorter_than_a_window_and_gives_gradients() -> None:
    short = torch.randn(2, 1, 100, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses.log_mel_loss(short, torch.zeros(2, 1, 100), sample_rate=22_050).backward()
    assert short.grad is not None
    assert torch.isfinite(short.grad).all()
    with pytest.raises(TTSCompressError, match="cannot be compared"):
        losses.log_mel_loss(short, torch.zeros(2, 1, 99), sample_rate=22_050)
