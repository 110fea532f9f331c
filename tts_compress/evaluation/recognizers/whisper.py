"""Whisper in CTranslate2, by faster-whisper: some 100 languages, one of which is decoded."""

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tts_compress.audio import Samples
from tts_compress.evaluation.recognizers import (
    Recognizer,
    check_language,
    find_folder,
    identify,
    model_files,
    opening,
)
from tts_compress.models.speakers import primary_language

EXTRA = "whisper"

_DEFAULT = "small"
_BEAMS = 5


def open_recognizer(model: str, language: str) -> Recognizer:
    """Open a model: a folder in CTranslate2's format, or a name such as `small` or `large-v3`.

    It decodes one language by beam search, without chance.
    Weights are rounded to INT8 on the CPU and to FP16 on a GPU, where they are not already.
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
    code, shown = primary_language(language), local.name if local else name
    return Recognizer(
        describe=lambda: (
            f"faster-whisper {version('faster-whisper')} (ctranslate2 {version('ctranslate2')}), "
            f"model {shown} ({identify(model_files(folder))}), {opened.model.compute_type}, "
            f"language {code}, beam {_BEAMS}"
        ),
        listen=partial(_listen, opened, code),
        device=str(opened.model.device),
    )


def _listen(model: Any, language: str, samples: Samples) -> str:
    segments, _ = model.transcribe(
        samples,
        language=language,
        task="transcribe",
        beam_size=_BEAMS,
        # One temperature: no second attempt by sampling.
        temperature=0.0,
        condition_on_previous_text=False,
        vad_filter=False,
    )
    return "".join(segment.text for segment in segments)
