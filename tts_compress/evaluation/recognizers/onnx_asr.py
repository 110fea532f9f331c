"""Recognizers as ONNX graphs, by onnx-asr: Parakeet, Canary, GigaAM, Vosk, Whisper and others."""

import os
from importlib.metadata import version

from tts_compress.audio import Samples
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import (
    Recognizer,
    check_language,
    find_folder,
    identify,
    opening,
)
from tts_compress.models.speakers import primary_language

EXTRA = "onnx-asr"

_SAMPLE_RATE = 16_000
_SHORTEST_S = 0.1
"""Less than one frame of an encoder makes some graphs fail."""

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


def open_recognizer(model: str, language: str) -> Recognizer:
    """Open a model: a folder whose config.json names its type, or a name that the library knows."""
    import onnxruntime
    from onnx_asr.loader import Manager, create_asr_resolver

    if not model:
        raise EvaluationError(
            "'onnx-asr' needs a model; give a name or a folder, such as "
            "onnx-asr:nemo-parakeet-tdt-0.6b-v3"
        )
    for beginning, languages in _LANGUAGES.items():
        if model.startswith(beginning):
            check_language(f"onnx-asr:{model}", languages, language)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    gpu = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    providers = ["CUDAExecutionProvider"] * gpu + ["CPUExecutionProvider"]
    with opening("onnx-asr", model):
        folder = find_folder(model)
        source = (None, folder) if folder else (model, None)
        files = create_asr_resolver(*source).resolve_model()
        opened = Manager(sess_options=options, providers=providers).create_asr(*source)
    tokens = getattr(opened.asr, "_tokens", {})
    spoken = {token[2:-2] for token in tokens if token.startswith("<|") and len(token) < 8}
    # The tokens of models that take a language show which ones they know.
    if takes_language := "<|en|>" in tokens:
        check_language(f"onnx-asr:{model}", spoken, language)
    device, shown = "cuda" if gpu else "cpu", folder.name if folder else model
    chosen = {"language": primary_language(language)} if takes_language else {}
    stated = "".join(f", language {code}" for code in chosen.values())

    def listen(samples: Samples) -> str:
        return str(opened.recognize(samples, sample_rate=_SAMPLE_RATE, **chosen))

    return Recognizer(
        describe=lambda: (
            f"onnx-asr {version('onnx-asr')}, model {shown} ({identify(files.values())}), "
            f"greedy, {device}{stated}"
        ),
        listen=listen,
        shortest_s=_SHORTEST_S,
        device=device,
    )
