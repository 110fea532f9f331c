"""Recognizers as ONNX graphs, by onnx-asr: Parakeet, Canary, GigaAM, Vosk, Whisper and others."""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tts_compress.audio import Audio
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import (
    check_language,
    find_folder,
    identify,
    opening,
)
from tts_compress.evaluation.samples import finite_samples
from tts_compress.models.speakers import primary_language

EXTRA = "onnx-asr"

_SAMPLE_RATE = 16_000
_SHORTEST_S = 0.1
"""Sounds are padded to this: less than one frame of an encoder makes some graphs fail."""

_LANGUAGES = {
    "gigaam-v2": ("ru",),
    "gigaam-v3": ("ru",),
    "nemo-fastconformer-ru": ("ru",),
    "nemo-parakeet-ctc": ("en",),
    "nemo-parakeet-rnnt": ("en",),
    "nemo-parakeet-tdt-0.6b-v2": ("en",),
    "alphacep/vosk-model": ("ru",),
    "t-tech/t-one": ("ru",),
}
"""Languages of the library's own models of one language, by the beginning of their names."""


class OnnxAsr:
    """A model that onnx-asr opened; its decoding is greedy.

    Args:
        model: The library's model.
        name: The model's name on the hub, or that of its folder.
        files: Its files.
        language: Code of the language, for a model that takes one; None for others.
        device: `cpu` or `cuda`.
    """

    def __init__(
        self, model: Any, name: str, files: list[Path], language: str | None, device: str
    ) -> None:
        self._model = model
        self._name = name
        self._files = files
        self._language = language
        self.device = device

    @property
    def description(self) -> str:
        """Versions, model, files, and the language where the model takes one."""
        language = "" if self._language is None else f", language {self._language}"
        return (
            f"onnx-asr {version('onnx-asr')}, model {self._name} ({identify(self._files)}), "
            f"greedy, {self.device}{language}"
        )

    def transcribe(self, audio: Audio) -> str:
        """Return the transcript; empty where no words are found."""
        samples = finite_samples(audio, _SAMPLE_RATE)
        if len(samples) < _SHORTEST_S * _SAMPLE_RATE:
            return ""
        more = {} if self._language is None else {"language": self._language}
        return str(self._model.recognize(samples, sample_rate=_SAMPLE_RATE, **more)).strip()


def open_recognizer(model: str, language: str) -> OnnxAsr:
    """Open a model: a folder whose config.json names its type, or a name that the library knows.

    Raises:
        EvaluationError: It cannot be opened, or does not know the language.
        ImportError: onnx-asr is not installed.
    """
    import onnxruntime
    from onnx_asr.loader import Manager, create_asr_resolver

    if not model:
        raise EvaluationError(
            "'onnx-asr' needs a model; give a name or a folder, such as "
            "onnx-asr:nemo-parakeet-tdt-0.6b-v3"
        )
    for beginning, known in _LANGUAGES.items():
        if model.startswith(beginning):
            check_language(f"onnx-asr:{model}", known, language)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    gpu = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    providers = ["CUDAExecutionProvider"] * gpu + ["CPUExecutionProvider"]
    with opening("onnx-asr", model):
        folder = find_folder(model)
        place = (None, folder) if folder else (model, None)
        files = create_asr_resolver(*place).resolve_model()
        opened = Manager(sess_options=options, providers=providers).create_asr(*place)
    tokens = getattr(opened.asr, "_tokens", {})
    spoken = {token[2:-2] for token in tokens if token.startswith("<|") and len(token) < 8}
    # The tokens of models that take a language show which ones they know.
    if takes_language := "<|en|>" in tokens:
        check_language(f"onnx-asr:{model}", spoken, language)
    return OnnxAsr(
        opened,
        folder.name if folder else model,
        list(files.values()),
        primary_language(language) if takes_language else None,
        "cuda" if gpu else "cpu",
    )
