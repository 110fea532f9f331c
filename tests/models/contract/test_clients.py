"""Artifacts in the systems' own unmodified programs, called as their users call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.models.contract.conftest import build_vocos
from tts_compress.compression import compress
from tts_compress.models import load
from tts_compress.models.base import Speaking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PHONEMES = "həlˈoʊ wˈɜld"


@pytest.mark.parametrize("scheme", [None, "int8-dynamic", "fp16"])
def test_kokoro_onnx_speaks_an_artifact_as_we_do(
    make_kokoro: Callable[..., Path], tmp_path: Path, scheme: str | None
) -> None:
    """Sample for sample: ids, edges, style and speed are those of its authors."""
    client = pytest.importorskip("kokoro_onnx")
    path = make_kokoro()
    voice: Any = load(path)
    if scheme is not None:
        voice = load(compress(voice, scheme).save(tmp_path / "out"))
        path = tmp_path / "out" / path.name
    kokoro = client.Kokoro(str(path), str(path.with_name("voices-v1.0.bin")))
    samples, sample_rate = kokoro.create(_PHONEMES, "am_adam", is_phonemes=True, trim=False)
    ids = " ".join(map(str, kokoro.tokenizer.tokenize(_PHONEMES)))
    spoken = voice.speaking_as(Speaking(speaker="am_adam")).synthesize(f"ids: {ids}", seed=0)
    assert sample_rate == voice.sample_rate
    assert np.array_equal(spoken.samples, samples)


def test_espeak_gives_kokoro_what_its_own_program_gives_it(
    make_kokoro: Callable[..., Path],
) -> None:
    client = pytest.importorskip("kokoro_onnx")
    path = make_kokoro()
    kokoro = client.Kokoro(str(path), str(path.with_name("voices-v1.0.bin")))
    voice: Any = load(path)
    for text in ("Hello, world.", "The quick brown fox jumps over the lazy dog!"):
        [call] = voice.calibration_calls([text], seed=0)
        theirs = kokoro.tokenizer.tokenize(kokoro.tokenizer.phonemize(text))
        assert call["tokens"][0, 1:-1].tolist() == theirs


@pytest.mark.parametrize("scheme", [None, "int8-dynamic", "int8-weight-only", "bf16"])
def test_sherpa_onnx_speaks_an_artifact_as_we_do(
    make_vits: Callable[..., Path], tmp_path: Path, scheme: str | None
) -> None:
    """It gives inputs by their order, and reads tokens, blanks and edges from the metadata."""
    client = pytest.importorskip("sherpa_onnx")
    path = make_vits(speakers=3)
    voice: Any = load(path)
    if scheme is not None:
        voice = load(compress(voice, scheme).save(tmp_path / "out"))
        path = tmp_path / "out" / path.name
    vits = client.OfflineTtsVitsModelConfig(
        model=str(path),
        tokens=str(path.with_name("tokens.txt")),
        noise_scale=0.0,
        noise_scale_w=0.0,
    )
    model = client.OfflineTtsModelConfig(vits=vits, num_threads=1)
    speech = client.OfflineTts(client.OfflineTtsConfig(model=model))
    assert (speech.sample_rate, speech.num_speakers) == (voice.sample_rate, 3)
    made = speech.generate("hello there, you", sid=2)
    spoken = voice.speaking_as(Speaking(speaker=2)).synthesize("hello there, you", seed=None)
    assert made.sample_rate == 16000
    assert np.allclose(spoken.samples, made.samples, atol=1e-5)
    assert np.ptp(spoken.samples) > 0.1


@pytest.mark.parametrize("scheme", [None, "int8-dynamic"])
def test_kittentts_speaks_an_artifact_as_we_do(
    make_kitten: Callable[..., Path], tmp_path: Path, scheme: str | None
) -> None:
    """From a text: espeak-ng's phonemes, words and marks apart, and one style for each voice."""
    client = pytest.importorskip("kittentts")
    pytest.importorskip("kokoro_onnx.tokenizer")  # names espeak-ng's library to phonemizer
    path = make_kitten()
    voice: Any = load(path)
    if scheme is not None:
        voice = load(compress(voice, scheme).save(tmp_path / "out"))
        path = tmp_path / "out" / path.name
    loader = pytest.importorskip("espeakng_loader")
    wrapper = pytest.importorskip("phonemizer.backend.espeak.wrapper").EspeakWrapper
    wrapper.set_library(loader.get_library_path())
    wrapper.set_data_path(loader.get_data_path())
    kitten = client.KittenTTS(str(path), str(path.with_name("voices.npz")))
    text = "Well, the quick brown fox jumps over the lazy dog!"
    samples = kitten.generate(text, voice="expr-voice-2-f")
    spoken = voice.speaking_as(Speaking(speaker="expr-voice-2-f")).synthesize(text, seed=0)
    assert np.array_equal(spoken.samples, samples)


@pytest.mark.parametrize("scheme", [None, "int8-dynamic", "int8-weight-only"])
def test_sherpa_onnx_speaks_melo_as_we_do(
    make_melo: Callable[..., Path], tmp_path: Path, scheme: str | None
) -> None:
    client = pytest.importorskip("sherpa_onnx")
    path = make_melo()
    voice: Any = load(path)
    if scheme is not None:
        voice = load(compress(voice, scheme).save(tmp_path / "out"))
        path = tmp_path / "out" / path.name
    vits = client.OfflineTtsVitsModelConfig(
        model=str(path),
        tokens=str(path.with_name("tokens.txt")),
        lexicon=str(path.with_name("lexicon.txt")),
        noise_scale=0.0,
        noise_scale_w=0.0,
    )
    model = client.OfflineTtsModelConfig(vits=vits, num_threads=1)
    speech = client.OfflineTts(client.OfflineTtsConfig(model=model))
    for text in ("hello", "Hello world hello"):
        made = speech.generate(text)
        spoken = voice.synthesize(text, seed=None)
        assert made.sample_rate == voice.sample_rate == 44100
        assert np.allclose(spoken.samples, made.samples, atol=1e-5)


@pytest.mark.parametrize("scheme", [None, "int8-dynamic", "int8-weight-only"])
def test_sherpa_onnx_speaks_matcha_as_we_do(
    make_matcha: Callable[..., Path], tmp_path: Path, scheme: str | None
) -> None:
    _compare_matcha(make_matcha(), "hifigan_v2.onnx", tmp_path, scheme)


@pytest.mark.parametrize("scheme", [None, "int8-dynamic", "fp16"])
@pytest.mark.parametrize("metadata", [{}, {"center": "0"}, {"normalized": "1"}], ids=str)
def test_sherpa_onnx_makes_the_same_sound_of_spectra(
    make_matcha: Callable[..., Path],
    tmp_path: Path,
    metadata: dict[str, str],
    scheme: str | None,
) -> None:
    """Vocos returns magnitudes and phases; both programs transform them back."""
    path = make_matcha(build_vocos(metadata))
    _compare_matcha(path, "vocos-22khz-univ.onnx", tmp_path, scheme)


def _compare_matcha(path: Path, vocoder: str, work: Path, scheme: str | None) -> None:
    """Let sherpa-onnx speak a voice, or its artifact, and compare with what we make of it.

    It has a lexicon, which its newest version asks for.
    """
    client = pytest.importorskip("sherpa_onnx")
    name = "matcha" if vocoder.startswith("hifigan") else "matcha-vocos"
    (path.parent / "lexicon.txt").write_text("hello h ə l ˈ o ʊ\n", encoding="utf-8")
    (path.parent / "contract.toml").write_text(
        f'version = 1\nbase = "{name}"\n'
        'tokens = { source = "lexicon", lexicon = "lexicon.txt" }\n',
        encoding="utf-8",
    )
    voice: Any = load(path)
    if scheme is not None:
        voice = load(compress(voice, scheme).save(work / "out"))
        path = work / "out" / path.name
    matcha = client.OfflineTtsMatchaModelConfig(
        acoustic_model=str(path),
        vocoder=str(path.with_name(vocoder)),
        tokens=str(path.with_name("tokens.txt")),
        lexicon=str(path.with_name("lexicon.txt")),
        noise_scale=0.0,
    )
    model = client.OfflineTtsModelConfig(matcha=matcha, num_threads=1)
    speech = client.OfflineTts(client.OfflineTtsConfig(model=model))
    made = speech.generate("hello")
    spoken = voice.synthesize("hello", seed=None)
    assert made.sample_rate == voice.sample_rate == 22050
    assert len(spoken.samples) == len(made.samples)
    assert np.allclose(spoken.samples, made.samples, atol=1e-5 * np.abs(made.samples).max())
    assert np.ptp(spoken.samples) > 0
