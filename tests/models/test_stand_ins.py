"""Torchaudio's stand-in agrees with independent implementations of the same definitions."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.errors import ModelError

torch = pytest.importorskip("torch")
stand_in = pytest.importorskip("tts_compress.models.stand_ins")


@pytest.fixture
def without_torchaudio(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[pytest.MonkeyPatch]:
    """Make the real torchaudio fail as one built for another torch does."""
    kept = {n: m for n, m in sys.modules.items() if n.split(".")[0] == "torchaudio"}
    for name in kept:
        del sys.modules[name]
    package = tmp_path / "torchaudio"
    package.mkdir()
    (package / "half.py").write_text("")
    (package / "__init__.py").write_text(
        "import torchaudio.half\nraise OSError('libc10_cuda.so: cannot open shared object file')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield monkeypatch
    for name in [n for n in sys.modules if n.split(".")[0] == "torchaudio"]:
        del sys.modules[name]
    sys.modules.update(kept)


def test_imports_of_the_three_packages_work(without_torchaudio: Any) -> None:
    del without_torchaudio
    stand_in.offer_torchaudio()
    torchaudio = import_module("torchaudio")
    scale = import_module("torchaudio.functional.functional")
    with pytest.raises(
        ModelError, match=r"'torchaudio\.functional\.functional\._hz_to_mel' is not"
    ):
        scale._hz_to_mel(440.0)  # imported by heads of Vocos that no voice has
    assert torchaudio.transforms.Resample is stand_in.Resample
    assert torchaudio.load is stand_in.load
    assert "torchaudio.half" not in sys.modules
    with pytest.raises(ModelError, match=r"'torchaudio\.save' is not .*pip install torchaudio"):
        torchaudio.save("speech.wav")
    before = sys.modules["torchaudio"]
    stand_in.offer_torchaudio()
    assert sys.modules["torchaudio"] is before


def test_the_real_package_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(sys)("torchaudio")
    monkeypatch.setitem(sys.modules, "torchaudio", real)
    stand_in.offer_torchaudio()
    assert sys.modules["torchaudio"] is real


def test_load_reads_channels_first(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    wave = np.array([[0.5, -0.5], [0.25, 0.0], [0.0, 0.125]])
    soundfile.write(tmp_path / "two.wav", wave, 8000)
    samples, sample_rate = stand_in.load(tmp_path / "two.wav")
    assert sample_rate == 8000
    assert samples.dtype == torch.float32
    assert samples.tolist() == wave.T.tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"sample_rate": 24000, "n_fft": 1024, "hop_length": 256, "n_mels": 100, "power": 1},
        {"sample_rate": 16000, "n_fft": 512, "n_mels": 40, "f_min": 50.0, "f_max": 7000.0},
        {"sample_rate": 24000, "n_fft": 1024, "win_length": 800, "n_mels": 80, "center": False},
    ],
)
def test_mel_spectrogram_is_that_of_librosa(settings: dict[str, Any]) -> None:
    librosa = pytest.importorskip("librosa")
    signal = torch.randn(2, 9000, generator=torch.Generator().manual_seed(0))
    module = stand_in.MelSpectrogram(**settings)
    assert list(module.state_dict()) == ["spectrogram.window", "mel_scale.fb"]
    found = module(signal)
    window = settings.get("win_length", settings["n_fft"])
    wanted = librosa.feature.melspectrogram(
        y=signal.numpy(),
        sr=settings["sample_rate"],
        n_fft=settings["n_fft"],
        win_length=window,
        hop_length=settings.get("hop_length", window // 2),
        n_mels=settings["n_mels"],
        power=settings.get("power", 2),
        center=settings.get("center", True),
        pad_mode="reflect",
        fmin=settings.get("f_min", 0.0),
        fmax=settings.get("f_max"),
        htk=True,
        norm=None,
    )
    assert found.shape == wanted.shape
    assert np.abs(found.numpy() - wanted).max() < 1e-5 * wanted.max()


def test_what_is_not_offered_says_so() -> None:
    with pytest.raises(ModelError, match="norm='slaney'"):
        stand_in.MelSpectrogram(norm="slaney")


@pytest.mark.parametrize(
    ("into", "out"), [(44100, 24000), (22050, 24000), (16000, 24000), (48000, 24000), (24000, 8000)]
)
def test_resampling_is_that_of_scipy(into: int, out: int) -> None:
    """Tones below the edge pass unchanged: both approximate one ideal."""
    signal = pytest.importorskip("scipy.signal")
    time = np.arange(into) / into
    wave = sum(np.sin(2 * np.pi * pitch * time + pitch) for pitch in (110, 997, 2500))
    found = stand_in.Resample(into, out)(torch.from_numpy(wave).float()[None, None])
    wanted = signal.resample_poly(wave, out, into, window=("kaiser", 12.0))
    assert found.shape == (1, 1, out)
    inside = slice(out // 20, -out // 20)
    assert np.abs(found[0, 0].numpy() - wanted)[inside].max() < 0.01
    exact = sum(np.sin(2 * np.pi * p * np.arange(out) / out + p) for p in (110, 997, 2500))
    assert np.abs(found[0, 0].numpy() - exact)[inside].max() < 0.01


def test_resampling_removes_what_the_new_rate_cannot_hold() -> None:
    wave = torch.sin(2 * np.pi * 6000 * torch.arange(24000) / 24000)
    assert stand_in.Resample(24000, 8000)(wave)[500:-500].abs().max() < 0.005
    assert stand_in.Resample(24000, 8000)(wave[:25]).shape == (9,)
    assert stand_in.Resample(24000, 24000)(wave) is wave
