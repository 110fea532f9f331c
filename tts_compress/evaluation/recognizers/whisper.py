"""Whisper in CTranslate2, by faster-whisper: some 100 languages, one of which is decoded."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from tts_compress.audio import Audio
from tts_compress.evaluation.recognizers import (
    check_language,
    find_folder,
    identify,
    model_files,
    opening,
)
from tts_compress.evaluation.samples import finite_samples
from tts_compress.models.speakers import primary_language

EXTRA = "whisper"

_DEFAULT = "small"
_SAMPLE_RATE = 16_000
_BEAMS = 5


class Whisper:
    """A Whisper model, decoding one language by beam search without chance.

    Args:
        model: The opened `faster_whisper.WhisperModel`.
        name: The model's name on the hub, or that of its folder.
        folder: The folder of its files.
        language: Code of the language to decode.
    """

    def __init__(self, model: Any, name: str, folder: Path, language: str) -> None:
        self._model = model
        self._name = name
        self._folder = folder
        self._language = language

    @property
    def device(self) -> str:
        """`cuda` where CTranslate2 sees a GPU."""
        return str(self._model.model.device)

    @property
    def description(self) -> str:
        """Versions, model, files, arithmetic, language and beams."""
        return (
            f"faster-whisper {version('faster-whisper')} (ctranslate2 {version('ctranslate2')}), "
            f"model {self._name} ({identify(model_files(self._folder))}), "
            f"{self._model.model.compute_type}, language {self._language}, beam {_BEAMS}"
        )

    def transcribe(self, audio: Audio) -> str:
        """Return the transcript; empty where no words are found."""
        samples = finite_samples(audio, _SAMPLE_RATE)
        if not len(samples):
            return ""
        segments, _ = self._model.transcribe(
            samples,
            language=self._language,
            task="transcribe",
            beam_size=_BEAMS,
            # One temperature: no second attempt by sampling.
            temperature=0.0,
            condition_on_previous_text=False,
            vad_filter=False,
        )
        return "".join(segment.text for segment in segments).strip()


def open_recognizer(model: str, language: str) -> Whisper:
    """Open a model: a folder in CTranslate2's format, or a name such as `small` or `large-v3`.

    Weights are rounded to INT8 on the CPU and to FP16 on a GPU, where they are not already.

    Raises:
        EvaluationError: It cannot be opened, or does not know the language.
        ImportError: faster-whisper is not installed.
    """
    import ctranslate2
    from faster_whisper import WhisperModel
    from faster_whisper.utils import download_model

    name = model or _DEFAULT
    with opening("whisper", name):
        local = find_folder(name)
        folder = local or Path(download_model(name))
        gpu = ctranslate2.get_cuda_device_count() > 0
        opened = WhisperModel(
            str(folder),
            device="cuda" if gpu else "cpu",
            compute_type="float16" if gpu else "int8",
            local_files_only=True,
        )
    # The library itself only warns, and then decodes English.
    check_language(f"whisper:{name}", opened.supported_languages, language)
    return Whisper(opened, local.name if local else name, folder, primary_language(language))
