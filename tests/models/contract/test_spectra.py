"""Sound of spectra, against torch's own transform."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.contract.conftest import build_vocos
from tts_compress.errors import ModelError, RecipeError
from tts_compress.models import load
from tts_compress.models.contract.calling import to_samples
from tts_compress.models.contract.schema import Spectrum

_SIZE, _STEP = 64, 16


def _outputs(form: str, spectra: Any) -> list[Any]:
    if form == "real-imaginary":
        return [spectra.real, spectra.imag]
    if form == "magnitude-phase":
        return [abs(spectra), np.angle(spectra)]
    return [abs(spectra), np.cos(np.angle(spectra)), np.sin(np.angle(spectra))]


@pytest.mark.parametrize("form", ["magnitude-cosine-sine", "magnitude-phase", "real-imaginary"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_spectrum_becomes_the_sound_it_was(form: str, normalized: bool) -> None:
    torch = pytest.importorskip("torch")
    sound = np.random.default_rng(0).standard_normal(20 * _STEP).astype(np.float32)
    spectra = torch.stft(
        torch.from_numpy(sound)[None],
        _SIZE,
        _STEP,
        window=torch.hann_window(_SIZE),
        center=True,
        normalized=normalized,
        return_complex=True,
    ).numpy()
    stated = Spectrum.model_validate(
        {"form": form, "n_fft": _SIZE, "hop_length": _STEP, "normalized": normalized}
    )
    made = to_samples(stated, _outputs(form, spectra))
    assert made.dtype == np.float32
    assert np.allclose(made, sound, atol=1e-5)


def test_frames_that_are_not_centred_keep_both_ends() -> None:
    """Frames of ones without a window give their mean where they overlap."""
    spectra = np.zeros((1, _SIZE // 2 + 1, 3), np.complex64)
    spectra[:, 0] = _SIZE
    stated = Spectrum.model_validate(
        {"form": "real-imaginary", "n_fft": _SIZE, "hop_length": _STEP, "window": "none"}
    )
    stated = stated.model_copy(update={"center": False})
    made = to_samples(stated, _outputs("real-imaginary", spectra))
    assert np.allclose(made, np.ones(_SIZE + 2 * _STEP))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ('form = "magnitude-phases"', "then.0.spectrum.form"),
        ('form = "magnitude-phase"\noutputs = ["mag"]', "'magnitude-phase' needs 2 outputs"),
        ('form = "magnitude-phase"\noutputs = ["mag", "p"]', "no output 'p'; its outputs are mag"),
        ('form = "magnitude-phase"\nwindow = "blackman"', "then.0.spectrum.window"),
    ],
)
def test_a_wrong_transform_gets_one_line(
    make_matcha: Callable[..., Path], own: str, message: str
) -> None:
    path = make_matcha(build_vocos())
    path.with_name("contract.toml").write_text(
        'version = 1\nbase = "matcha"\n[[then]]\ngraph = "vocos*.onnx"\n[then.spectrum]\n'
        f"n_fft = 64\nhop_length = 16\n{own}\n",
        encoding="utf-8",
    )
    with pytest.raises(RecipeError, match=message) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_voice_with_two_vocoders_or_none_is_told_to_choose(
    make_matcha: Callable[..., Path],
) -> None:
    path = make_matcha(build_vocos())
    vocoder = path.with_name("vocos-22khz-univ.onnx")
    assert load(path).describe()["contract"] == "matcha-vocos"
    vocoder.unlink()
    with pytest.raises(ModelError, match=r"fit the contracts matcha and matcha-vocos; put"):
        load(f"contract:{path}")
