"""A worker whose models and recognizer are made up; run like `tts_compress.evaluation.worker`.

A model is a JSON file that sets its behaviour. It "speaks" a tone per character, and the
recognizer reads the tones back, so that words survive a change of loudness.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tts_compress.artifact import Manifest, read_manifest
from tts_compress.audio import Audio
from tts_compress.errors import ModelError, TextError
from tts_compress.evaluation import recognizers, worker
from tts_compress.models.base import ModelFiles, Prompt, Speaking, Tokens
from tts_compress.models.speakers import find_speaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

BLOCK = 400
RATE = 16_000
ARTIFACT_FILE = "model.onnx"
"""The JSON file in an artifact, by a name that says that it has the weights."""

LETTERS = " abcdefghijklmnopqrstuvwxyz'"


class FakeModel:
    """A model whose speech its JSON file sets."""

    family = "fake"
    manifest: Manifest | None = None
    speaker: str | None = None
    languages: tuple[str, ...] = ()

    def __init__(self, spec: str, *, saved: bool = True) -> None:
        self.spec = spec
        self._saved = saved
        self._prompt = Prompt()
        path = Path(spec)
        if path.is_dir():  # an artifact
            self.manifest, path = read_manifest(path), path / ARTIFACT_FILE
        self._path = path
        try:
            self._ways: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"no model '{spec}'") from error
        self.sample_rate = self._ways.get("rate", RATE)
        print("library chatter on standard output")

    @property
    def speakers(self) -> dict[str, int]:
        """Return the speakers that the file names."""
        return {name: number for number, name in enumerate(self._ways.get("speakers", ()))}

    @property
    def speaking(self) -> Speaking:
        """Return what was chosen."""
        return Speaking(speaker=self.speaker, languages=self.languages, prompt=self._prompt)

    def speaking_as(self, speaking: Speaking) -> FakeModel:
        """Return the model as a speaker, or more softly if it has a recording."""
        chosen = copy.copy(self)
        if speaking.speaker is not None:
            chosen.speaker = find_speaker(self.speakers, speaking.speaker, self.spec)
        if speaking.prompt is not None:
            if speaking.prompt.text == "refused":
                raise ModelError("cannot speak by that")
            chosen._prompt = speaking.prompt
        return chosen

    def describe(self) -> dict[str, str]:
        """Return the settings in the file."""
        return dict(self._ways.get("settings", {}))

    def components(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Return a tone per letter, with a little noise."""
        self._misbehave(text)
        skip = 3 if self.speaker in self._ways.get("broken", ()) else self._ways.get("skip", 1)
        letters = [c for c in text.lower() if c in LETTERS][::skip]
        time_s = np.arange(BLOCK) / RATE
        tones = [np.sin(2 * np.pi * _frequency(c) * time_s) for c in letters]
        samples = 0.3 * np.concatenate(tones) * self._ways.get("gain", 1.0)
        samples += 0.001 * np.random.default_rng(seed).standard_normal(len(samples))
        samples = samples.astype(np.float32)
        if self._prompt.audio is not None:
            samples *= np.float32(0.5)
        samples[: self._ways.get("nan", 0)] = np.nan
        durations = np.full(len(letters), 2, np.int64)
        return Audio(samples=samples, sample_rate=self.sample_rate, durations=durations)

    def open_runtime(self, *, threads: int) -> FakeModel:
        """Check that the environment agrees with `threads`."""
        assert os.environ["OMP_NUM_THREADS"] == str(threads)
        return self

    def speak(self, text: str) -> Audio:
        """Speak without noise."""
        audio = self.synthesize(text, seed=None)
        return replace(audio, samples=audio.samples[:0]) if "mute" in self._ways else audio

    def files(self) -> ModelFiles:
        """Return the JSON file."""
        if not self._saved:
            raise ModelError("not saved")
        return ModelFiles(weights=(self._path,))

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write the JSON file."""
        del force
        path = Path(directory).with_suffix(".json")
        path.write_text(json.dumps(self._ways), encoding="utf-8")
        return path

    def _misbehave(self, text: str) -> None:
        if (log := self._ways.get("log")) is not None:
            with Path(log).open("a", encoding="utf-8") as file:
                tag = self.speaker or self._ways.get("tag")
                file.write(f"{tag}:{text}\n" if tag else f"{text}\n")
        if self._ways.get("on", text) != text:
            return
        if "sleep" in self._ways:
            time.sleep(self._ways["sleep"])
        match self._ways.get("fault"):
            case "exit":
                print("out of cheese", file=sys.stderr)
                os._exit(3)
            case "raise":
                raise ZeroDivisionError("by a fault")
            case "text":
                raise TextError("cannot be spoken")


class FakeLanguageModel(FakeModel):
    """Generates a token per letter of one codebook, and scores tokens as its file sets."""

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Return the letters' places in the alphabet."""
        self._misbehave(f"say {text} {seed}")
        ids = np.array([[0], *([LETTERS.index(c)] for c in text.lower() if c in LETTERS)], np.int64)
        return Tokens(ids=ids, chosen=np.ones((len(ids) - 1, 1), np.bool_))

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return one score for every token but the one that comes, and for some of those too."""
        self._misbehave(f"read {text}")
        scores = np.zeros((len(tokens.ids) - 1, 1, len(LETTERS)), np.float32)
        wrong = self._ways.get("wrong", 0)
        for step, token in enumerate(tokens.ids[1:, 0]):
            scores[step, 0, (token + (step < wrong)) % len(LETTERS)] = 5.0
        return scores


class FakeTorchModel(FakeModel):
    """Claims to be run by torch."""

    family = "f5-tts"

    def root(self) -> None:
        """Return nothing."""

    def with_root(self, root: object, manifest: object) -> FakeTorchModel:
        """Return the same."""
        del root, manifest
        return self

    def objectives(self) -> tuple[()]:
        """Return nothing."""
        return ()

    def named_calls(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


class FakePolyglot(FakeModel):
    """Speaks the languages that its file names, and at half the loudness if one was chosen."""

    @property
    def speaking(self) -> Speaking:
        """Return the chosen language, or all."""
        languages = self.languages or tuple(self._ways["languages"])
        return replace(super().speaking, languages=languages)

    def speaking_as(self, speaking: Speaking) -> FakeModel:
        """Return the model with a language chosen."""
        chosen = super().speaking_as(speaking)
        chosen.languages = speaking.languages or self.languages
        return chosen

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Return a tone per letter."""
        audio = super().synthesize(text, seed=seed)
        return replace(audio, samples=audio.samples * np.float32(0.5 if self.languages else 1.0))


class FakeRecognizer:
    """Reads the tones back."""

    description = "tone reader 1"
    device = "cpu"

    def transcribe(self, audio: Audio) -> str:
        """Return a letter per tone."""
        if (log := os.environ.get("FAKE_RECOGNIZER_LOG")) is not None:
            with Path(log).open("a", encoding="utf-8") as file:
                file.write(f"{len(audio.samples)}\n")
        whole = len(audio.samples) // BLOCK * BLOCK
        blocks = np.nan_to_num(audio.samples[:whole]).reshape(-1, BLOCK)
        peaks = np.abs(np.fft.rfft(blocks, 8 * BLOCK, axis=1)).argmax(axis=1) * RATE / (8 * BLOCK)
        grid = np.array([_frequency(letter) for letter in LETTERS])
        return "".join(LETTERS[np.abs(grid - peak).argmin()] for peak in peaks)


def _open_length(settings: Mapping[str, str]) -> Callable[[Audio], float]:
    scale = {"samples": 1.0, "milliseconds": 1000.0 / RATE}[settings["unit"]]
    return lambda audio: len(audio.samples) * scale


def _frequency(letter: str) -> float:
    return 500.0 + 150.0 * LETTERS.index(letter)


def load(spec: str | Path) -> FakeModel:
    """Return the model of a JSON file."""
    kinds = {"language": FakeLanguageModel, "languages": FakePolyglot, "torch": FakeTorchModel}
    found = FakeModel(str(spec))
    return kinds.get(found._ways.get("kind", ""), FakeModel)(str(spec))


if __name__ == "__main__":
    vars(worker)["load"] = load
    vars(recognizers)["open_recognizer"] = lambda *_: FakeRecognizer()
    if sys.argv[1] == "measure":
        from tts_compress.evaluation import metric

        length = metric.Measure(name="length", settings=lambda _: None, open=_open_length)
        vars(metric)["find_measures"] = lambda: {"length": length}
    worker.main(sys.argv[1:])
