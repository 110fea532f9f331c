"""Transforms out of products, against torch's own and librosa's bands."""

import pytest

torch = pytest.importorskip("torch")

from tts_compress.export.fourier import Fourier, FrameSettings, InverseFourier, LogMel  # noqa: E402


@pytest.mark.parametrize("size", [2, 6, 22, 64, 100, 1024])
def test_transform_is_that_of_torch(size: int) -> None:
    torch.manual_seed(size)
    frames = torch.randn(2, 3, size)
    window = torch.rand(size) + 0.5
    real, imaginary = Fourier(window)(frames)
    expected = torch.fft.rfft(frames * window)
    scale = expected.abs().max()
    assert torch.allclose(real, expected.real, atol=1e-6 * scale)
    assert torch.allclose(imaginary, expected.imag, atol=1e-6 * scale)


@pytest.mark.parametrize(("size", "hop"), [(64, 16), (64, 20), (100, 25), (1024, 256)])
def test_inverse_is_that_of_torch(size: int, hop: int) -> None:
    """Also where the hop does not divide the size, and with imaginary parts at both ends."""
    torch.manual_seed(0)
    window = torch.hann_window(size)
    spectrum = torch.randn(2, size // 2 + 1, 13, dtype=torch.complex64)
    expected = torch.istft(spectrum, size, hop, size, window, center=True)
    transposed = spectrum.transpose(1, 2)
    audio = InverseFourier(window, hop, size // 2)(transposed.real, transposed.imag)
    assert audio.shape == expected.shape
    assert torch.allclose(audio, expected, atol=1e-5 * expected.abs().max())


def test_no_constant_looks_like_a_trained_weight() -> None:
    """A product with a constant of two dimensions would be rounded to INT8."""
    for module in (InverseFourier(torch.hann_window(64), 16, 32), LogMel(FrameSettings())):
        assert all(buffer.ndim != 2 for buffer in module.buffers())


def test_silence_is_limited_as_upstream_does() -> None:
    found = LogMel(FrameSettings())(torch.zeros(1, 4096))
    assert torch.allclose(found, torch.tensor(1e-5).log())


@pytest.mark.parametrize("samples", [1500, 4096, 5001])
@pytest.mark.parametrize("window", [1024, 800])
def test_log_mel_is_that_of_torch(samples: int, window: int) -> None:
    torch.manual_seed(0)
    audio = torch.randn(1, samples) / 10
    settings = FrameSettings(win_length=window)
    spectrum = torch.stft(
        audio, 1024, 256, window, torch.hann_window(window), pad_mode="reflect", return_complex=True
    )
    magnitudes = spectrum.abs().transpose(1, 2)
    expected = (magnitudes @ LogMel(settings).filters[0]).clamp(min=1e-5).log()
    found = LogMel(settings)(audio)
    assert found.shape == expected.shape == (1, samples // 256 + 1, 100)
    assert torch.allclose(found, expected, atol=1e-3)
