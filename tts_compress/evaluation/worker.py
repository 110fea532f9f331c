"""The program that runs one model, graph, recognizer or measure in a process of its own.

It is started as `python -m tts_compress.evaluation.worker`, followed by `model SPEC [EXECUTION]`,
by `graph FILE`, by `recognizer NAME[:MODEL] LANGUAGE`, or by `measure NAME SETTINGS`; execution
and settings are JSON.

An evaluation starts about ten, so each imports only what it serves.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from tts_compress.audio import Audio, audio_sha256, read_wav, write_float_wav
from tts_compress.models import load
from tts_compress.models.base import (
    GraphModel,
    LanguageModel,
    LatentModel,
    Prompt,
    Runtime,
    Speaking,
    StreamingRuntime,
    TTSModel,
)
from tts_compress.models.execution import execution_of
from tts_compress.models.files import STREAM_NAME
from tts_compress.processes import Answer, peak_bytes, serve, status_bytes

_BETWEEN = 1 << 16
"""Bytes between the places of a file at which is looked if it is cached."""


class _ModelHost:
    """Serves the requests to a model."""

    def __init__(self, spec: str, execution: str = "{}") -> None:
        self._model: TTSModel = load(spec, **json.loads(execution))
        self._runtime: Runtime | None = None
        self._spoken = ""

    def speak_as(
        self,
        prompt: dict[str, str | None] | None,
        language: str | None,
        speaker: str | None,
        *,
        varied: bool,
    ) -> Answer:
        """Speak by a prompt, in a language and as a speaker from now on; None changes nothing.

        A voice in ONNX has slightly other weights where it is to be `varied`.
        """
        languages = () if language is None else (language,)
        speaking = Speaking(speaker=speaker, languages=languages)
        if prompt is not None:
            audio = None if prompt["audio"] is None else Path(prompt["audio"])
            text, description = prompt["text"], prompt["description"]
            told = Prompt(audio=audio, text=text, description=description)
            speaking = replace(speaking, prompt=told)
        self._model = self._model.speaking_as(speaking)
        if varied:
            from tts_compress.models import onnx_model

            assert isinstance(self._model, GraphModel), "Side varies no other models"
            self._model = onnx_model.varied(self._model)
        return {}

    def synthesize(self, text: str, seed: int, path: str, speaker: str | None = None) -> Answer:
        """Speak with fed noise, as a speaker if one is named, into a WAV file of exact samples."""
        model = self._model.speaking_as(Speaking(speaker=speaker))
        audio = model.synthesize(text, seed=seed)
        write_float_wav(Path(path), audio)
        return {
            "audio": audio_sha256(audio),
            "durations": None if audio.durations is None else audio.durations.tolist(),
        }

    def import_modules(self, modules: list[str]) -> Answer:
        """Import what opening the model and speaking would import."""
        for name in modules:
            # Some exist only as a by-product of others; memory is measured without them then.
            with suppress(Exception):
                importlib.import_module(name)
        return {}

    def open_runtime(self, threads: int, *, warm: bool) -> Answer:
        """Open the system's own runtime, with the model's files in the system's cache or not."""
        idle = status_bytes("VmRSS") or peak_bytes()
        is_cold = not warm and _leave_cache(_files(self._model))
        start = perf_counter()
        self._runtime = self._model.open_runtime(threads=threads)
        spent, sessions = perf_counter() - start, getattr(self._model, "sessions", None)
        counts = {} if sessions is None else sessions.operators
        operators = {" ".join(kind): count for kind, count in sorted(counts.items())}
        return {
            "open_s": spent,
            "is_cold": is_cold,
            "idle_bytes": idle,
            "operators": operators,
        }

    def speak(self, text: str) -> Answer:
        """Speak in the system's own runtime, timed until the first sound and until the last."""
        runtime, self._spoken = self._runtime, text
        assert runtime is not None, "open_runtime comes first"
        start = perf_counter()
        first = audio_s = 0.0
        if isinstance(runtime, StreamingRuntime):
            chunks: Iterable[Audio] = runtime.stream(text)
        else:
            chunks = (runtime.speak(text),)
        for chunk in chunks:
            first = first or perf_counter() - start
            audio_s += chunk.duration_s
        spent = perf_counter() - start
        times = {"seconds": spent, "first_s": first, "audio_s": audio_s}
        return times | {"peak_bytes": peak_bytes()}

    def say(self, text: str, seed: int, path: str) -> Answer:
        """Write the tokens, or the latents, that a language model speaks into a file."""
        from tts_compress.evaluation.store import write_array, write_tokens

        if isinstance(self._model, LatentModel):
            write_array(Path(path), self._model.generate_latents(text, seed=seed))
        else:
            write_tokens(Path(path), self._language_model().generate_tokens(text, seed=seed))
        return {}

    def read(self, text: str, tokens: str, path: str) -> Answer:
        """Write what a language model answers to the tokens in a file into another."""
        import numpy as np

        from tts_compress.evaluation.metrics.teacher_forcing import answer_columns
        from tts_compress.evaluation.store import read_tokens, write_array

        if isinstance(self._model, LatentModel):
            answers = answer_columns(self._model.read_latents(text, np.load(tokens)))
        else:
            answers = self._language_model().logits(text, read_tokens(Path(tokens)))
        write_array(Path(path), answers)
        return {}

    def inspect(self) -> Answer:
        """Return the peak memory so far, every module that is imported, and the use of a GPU."""
        return {"peak_bytes": peak_bytes(), "modules": list(sys.modules), "gpu": self._gpu()}

    def _gpu(self) -> dict[str, float]:
        """Return the use of the GPU that the model lies on while it speaks the last text again."""
        device = execution_of(self._model).device
        if not device.startswith("cuda") or self._runtime is None:
            return {}
        import torch

        from tts_compress.torch.devices import watched

        with watched(torch.device(device)) as use:
            self._runtime.speak(self._spoken)
        return use

    def _language_model(self) -> LanguageModel:
        assert isinstance(self._model, LanguageModel), "only such models are asked"
        return self._model


def _files(model: TTSModel) -> list[Path]:
    """Return the files that a model is opened from: its weights, or the stages beside them."""
    files, stages = model.files(), Path(STREAM_NAME).parent
    weights, folders = files.weights, {p.parent / stages for p in (*files.weights, *files.settings)}
    return [*weights, *(path for folder in sorted(folders) for path in folder.glob("*"))]


def _leave_cache(paths: Iterable[Path]) -> bool:
    """Have the system forget files' pages, so that they are read from the disk again.

    False where it has no such call, or keeps pages: of files in memory, or that others have open.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        forgotten = [*map(_is_forgotten, paths)]
    except OSError:  # a file system without such calls
        return False
    return all(forgotten)


def _is_forgotten(path: Path) -> bool:
    """Have the system forget a file's pages, and return True if it has."""
    with path.open("rb") as file:
        handle, offsets = file.fileno(), range(0, path.stat().st_size, _BETWEEN)
        os.fsync(handle)  # pages that are not written yet stay
        # Asking for a byte has its page read, and without this those behind it, too.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        for wait_s in (0.0, 0.01, 0.1):  # a page stays that was read or unmapped a moment ago
            time.sleep(wait_s)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(_is_cached(handle, offset) for offset in offsets):
                return True
        return False


def _is_cached(handle: int, offset: int) -> bool:
    """Return True if a byte of a file need not be waited for."""
    try:
        return bool(os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    except OSError:  # a file system without such reads
        return True


class _GraphHost:
    """Serves the request to a graph, on one thread."""

    def __init__(self, path: str) -> None:
        from tts_compress.onnx.session import open_session

        self._session = open_session(Path(path), path, 1)

    def run(self, inputs: str) -> Answer:
        """Run the graph on the arrays in an `.npz`, and return the peak memory so far."""
        import numpy as np

        with np.load(inputs) as arrays:
            self._session.run(None, dict(arrays))
        return {"peak_bytes": peak_bytes()}


class _AnalysisHost:
    """Serves the requests to a recognizer, or to the measure of a metric.

    Args:
        analysis: Returns the value of an audio, such as its transcript.
        recognizer: The recognizer, if it is one.
    """

    def __init__(self, analysis: Callable[[Audio], Any], recognizer: Any = None) -> None:
        self._analysis = analysis
        self._recognizer = recognizer

    def describe(self) -> Answer:
        """Return the description of the recognizer for the report, and its device."""
        return {"description": self._recognizer.description, "device": self._recognizer.device}

    def analyze(self, path: str) -> Answer:
        """Return the value of a WAV file."""
        return {"value": self._analysis(read_wav(Path(path)))}


def _open_recognizer(spec: str, language: str) -> _AnalysisHost:
    from tts_compress.evaluation.recognizers import open_recognizer

    recognizer = open_recognizer(spec, language)
    return _AnalysisHost(recognizer.transcribe, recognizer)


def _open_measure(name: str, settings: str) -> _AnalysisHost:
    from tts_compress.evaluation.metric import find_measures

    return _AnalysisHost(find_measures()[name].open(json.loads(settings)))


_HOSTS: Mapping[str, Callable[..., object]] = {
    "model": _ModelHost,
    "graph": _GraphHost,
    "recognizer": _open_recognizer,
    "measure": _open_measure,
}


def main(arguments: list[str]) -> None:
    """Serve requests until standard input ends.

    Args:
        arguments: As in this module's text.
    """
    kind, *content = arguments
    serve(lambda: _HOSTS[kind](*content))


if __name__ == "__main__":
    main(sys.argv[1:])
