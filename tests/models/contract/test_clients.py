"""Artifacts in the systems' own unmodified programs, called as their users call them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.contract.conftest import build_vocos
from tts_compress.compression import compress
from tts_compress.models import load
from tts_compress.models.base import Speaking

_PHONEMES = "həlˈoʊ wˈɜld"


def _artifact(path: Path, scheme: str | None, folder: Path) -> tuple[Any, Path]:
    """Return a voice, or its artifact of a scheme, and the path of its first graph."""
    voice: Any = load(path)
    if scheme is None:
        return voice, path
    return load(compress(voice, scheme).save(folder / "out")), folder / "out" / path.name


def _sherpa(path: Path, **settings: Any) -> Any:
    """Return sherpa-onnx's object for a voice of one graph, without noise."""
    client = pytest.importorskip("sherpa_onnx")
    settings |= {"model": str(path), "tokens": str(path.with_name("tokens.txt"))}
    vits = client.OfflineTtsVitsModelConfig(**settings, noise_scale=0.0, noise_scale_w=0.0)
    model = client.OfflineTtsModelConfig(vits=vits, num_threads=1)
    return client.OfflineTts(client.OfflineTtsConfig(model=model))


@pytest.mark.parametrize("scheme", ["int8-dynamic", "fp16"])
def test_kokoro_onnx_speaks_an_artifact_as_we_do(
    make_kokoro: Callable[..., Path], tmp_path: Path, scheme: str
) -> None:
    """Sample for sample: ids, edges, style and speed are those of its authors."""
    client = pytest.importorskip("kokoro_onnx")
    voice, path = _artifact(make_kokoro(), scheme, tmp_path)
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


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8-weight-only", "bf16"])
def test_sherpa_onnx_speaks_an_artifact_as_we_do(
    make_vits: Callable[..., Path], tmp_path: Path, scheme: str
) -> None:
    """It gives inputs by their order, and reads tokens, blanks and edges from the metadata."""
    voice, path = _artifact(make_vits(speakers=3), scheme, tmp_path)
    speech = _sherpa(path)
    assert (speech.sample_rate, speech.num_speakers) == (voice.sample_rate, 3)
    theirs = speech.generate("hello there, you", sid=2)
    spoken = voice.speaking_as(Speaking(speaker=2)).synthesize("hello there, you", seed=None)
    assert theirs.sample_rate == 16000
    assert np.allclose(spoken.samples, theirs.samples, atol=1e-5)
    assert np.ptp(spoken.samples) > 0.1


def test_kittentts_speaks_an_artifact_as_we_do(
    make_kitten: Callable[..., Path], tmp_path: Path
) -> None:
    """From a text: espeak-ng's phonemes, words and marks apart, and one style for each voice."""
    client = pytest.importorskip("kittentts")
    pytest.importorskip("kokoro_onnx.tokenizer")  # names espeak-ng's library to phonemizer
    voice, path = _artifact(make_kitten(), "int8-dynamic", tmp_path)
    loader = pytest.importorskip("espeakng_loader")
    wrapper = pytest.importorskip("phonemizer.backend.espeak.wrapper").EspeakWrapper
    wrapper.set_library(loader.get_library_path())
    wrapper.set_data_path(loader.get_data_path())
    kitten = client.KittenTTS(str(path), str(path.with_name("voices.npz")))
    text = "Well, the quick brown fox jumps over the lazy dog!"
    samples = kitten.generate(text, voice="expr-voice-2-f")
    spoken = voice.speaking_as(Speaking(speaker="expr-voice-2-f")).synthesize(text, seed=0)
    assert np.array_equal(spoken.samples, samples)


def test_sherpa_onnx_speaks_melo_as_we_do(make_melo: Callable[..., Path], tmp_path: Path) -> None:
    voice, path = _artifact(make_melo(), "int8-dynamic", tmp_path)
    speech = _sherpa(path, lexicon=str(path.with_name("lexicon.txt")))
    for text in ("hello", "Hello world hello", "hello-world"):
        theirs = speech.generate(text)
        spoken = voice.synthesize(text, seed=None)
        assert theirs.sample_rate == voice.sample_rate == 44100
        assert np.allclose(spoken.samples, theirs.samples, atol=1e-5)


_VOCODERS: dict[str, Callable[[], Any]] = {
    "hifigan": lambda: None,
    "vocos": build_vocos,
    "vocos at the edge": lambda: build_vocos({"center": "0"}),
    "vocos normalized": lambda: build_vocos({"normalized": "1"}),
}


@pytest.mark.parametrize(
    ("vocoder", "scheme"),
    [
        *((name, None) for name in _VOCODERS if "vocos " in name),
        *(("hifigan", "fp16"), ("hifigan", "int8-dynamic"), ("vocos", "int8-dynamic")),
    ],
)
def test_sherpa_onnx_speaks_matcha_as_we_do(
    make_matcha: Callable[..., Path], tmp_path: Path, vocoder: str, scheme: str | None
) -> None:
    """Vocos returns magnitudes and phases; both programs transform them back.

    The voice has a lexicon, which sherpa-onnx's newest version asks for.
    """
    client = pytest.importorskip("sherpa_onnx")
    path, is_vocos = make_matcha(_VOCODERS[vocoder]()), vocoder != "hifigan"
    (path.parent / "lexicon.txt").write_text("hello h ə l ˈ o ʊ\n", encoding="utf-8")
    (path.parent / "contract.toml").write_text(
        f'version = 1\nbase = "{"matcha-vocos" if is_vocos else "matcha"}"\n'
        'tokens = { source = "lexicon", lexicon = "lexicon.txt" }\n',
        encoding="utf-8",
    )
    voice, path = _artifact(path, scheme, tmp_path)
    second = "vocos-22khz-univ.onnx" if is_vocos else "hifigan_v2.onnx"
    matcha = client.OfflineTtsMatchaModelConfig(
        acoustic_model=str(path),
        vocoder=str(path.with_name(second)),
        tokens=str(path.with_name("tokens.txt")),
        lexicon=str(path.with_name("lexicon.txt")),
        noise_scale=0.0,
    )
    model = client.OfflineTtsModelConfig(matcha=matcha, num_threads=1)
    speech = client.OfflineTts(client.OfflineTtsConfig(model=model))
    theirs = speech.generate("hello")
    spoken = voice.synthesize("hello", seed=None)
    assert theirs.sample_rate == voice.sample_rate == 22050
    assert len(spoken.samples) == len(theirs.samples)
    assert np.allclose(spoken.samples, theirs.samples, atol=1e-5 * np.abs(theirs.samples).max())
    assert np.ptp(spoken.samples) > 0
