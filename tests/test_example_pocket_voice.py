"""The example that trains a Pocket-TTS voice: it resumes exactly, and its result speaks."""

import re
from collections.abc import Iterator
from contextlib import chdir
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress import compress, load
from tts_compress.evaluation.recognizers.moonshine import open_recognizer
from tts_compress.evaluation.suite import read_suite

_EXAMPLES = Path(__file__).parents[1] / "examples"
_LEARNED, _HELD_OUT = 6, 4
_STEPS = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("pocket_tts", "piper", "soundfile")),
        reason="the example's packages are not installed",
    ),
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a working folder with speech, a codec of three steps, and latents."""
    import torch

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(_EXAMPLES))
        folder = tmp_path_factory.mktemp("pocket_voice")
        import_module("pocket_voice.speech").make_speech(folder, _LEARNED + _HELD_OUT)
        torch.set_num_threads(1)
        codec = import_module("pocket_voice.codec")
        for step in (codec, import_module("pocket_voice.language")):
            patch.setattr(step, "HELD_OUT", _HELD_OUT)
        codec.train_codec(folder, steps=_STEPS, device="cpu", batch=2, rate=1e-3)
        codec.make_latents(folder)
        yield folder
    torch.set_num_threads(threads)


def test_an_untrained_codec_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its random weights were, without a word."""
    monkeypatch.syspath_prepend(str(_EXAMPLES))
    with pytest.raises(FileNotFoundError, match="run the step `codec` first"):
        import_module("pocket_voice.codec").load_codec(tmp_path, None)


def test_a_training_that_was_cut_off_ends_with_the_same_weights(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = import_module("pocket_voice.tensors").read
    language, run = import_module("pocket_voice.language"), import_module("pocket_voice.training")
    stored = work / "language.safetensors"

    def train() -> None:
        language.train_language(work, steps=_STEPS, device="cpu", batch=4, rate=1e-3)

    train()
    whole, about = read(stored)
    stored.unlink()
    update = run.Run._update

    def cut_off(self: Any, loss: Any) -> None:
        self.save_every = 1
        if self.step == _STEPS - 1:
            raise KeyboardInterrupt
        update(self, loss)

    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "_update", cut_off)
        with pytest.raises(KeyboardInterrupt):
            train()
    assert read(stored)[1]["step"] == _STEPS - 1
    train()
    resumed, _ = read(stored)
    assert about["step"] == _STEPS
    assert resumed.keys() == whole.keys()
    assert all(resumed[name].equal(whole[name]) for name in whole)


def test_the_official_package_and_the_library_open_the_voice_and_speak(work: Path) -> None:
    language = import_module("pocket_voice.language")
    language.train_language(work, steps=_STEPS, device="cpu", batch=4, rate=1e-3)
    with chdir(work / "voice"):
        model = import_module("pocket_tts").TTSModel.load_model(config="config.yaml")
        state = model.get_state_for_audio_prompt(Path("reference.wav"))
        samples = model.generate_audio(state, "the cat is red.").numpy()
    assert len(samples) > 0
    assert np.isfinite(samples).all()
    spoken = load(f"pocket-tts:{work / 'voice'}").synthesize("The cat is red.", seed=0)
    assert spoken.sample_rate == model.sample_rate
    assert np.isfinite(spoken.samples).all()


def test_the_tokenizer_reads_words_and_phonemes_alike(work: Path) -> None:
    voice = import_module("pocket_voice.voice")
    about = import_module("pocket_voice.tensors").read(work / "latents.safetensors")[1]
    tokenizer = voice.build_tokenizer(about["said"])
    for text, phonemes in zip(about["texts"], about["phonemes"], strict=True):
        read = tokenizer.encode(text.capitalize())
        assert tokenizer.decode(read.ids) == phonemes
        assert tokenizer.encode(phonemes).ids == read.ids


def test_the_suite_holds_the_sentences_that_were_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_EXAMPLES))
    texts = import_module("pocket_voice.texts")
    drawn = texts.sentences(4060)
    suite = read_suite(_EXAMPLES / "pocket_voice/suite.toml")
    assert [utterance.text for utterance in suite.utterances] == drawn[-texts.HELD_OUT :]
    assert len({*drawn}) == len(drawn)


@pytest.mark.skipif(find_spec("moonshine_voice") is None, reason="moonshine-voice is not installed")
@pytest.mark.parametrize("scheme", ["", "int8", "int4-weight-only"])
def test_the_stored_voice_is_understood(scheme: str) -> None:
    model = load(f"pocket-tts:{_EXAMPLES / 'pocket_voice/voice'}")
    if scheme:
        model = compress(model, scheme)
    suite = read_suite(_EXAMPLES / "pocket_voice/suite.toml")
    listen = open_recognizer("", "en-us").listen
    texts = [utterance.text for utterance in suite.utterances[:15]]
    heard = [listen(model.synthesize(text, seed=0).samples) for text in texts]
    words = [re.findall(r"[a-z']+", text.lower()) for text in (*texts, *heard)]
    missed = [
        sum(word not in said for word in read)
        for read, said in zip(words[: len(texts)], words[len(texts) :], strict=True)
    ]
    assert sum(missed) < 0.25 * sum(map(len, words[: len(texts)]))
