"""Recognizers in transformers: models with CTC, and encoders with a decoder such as Whisper."""

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tts_compress.audio import Samples
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import (
    Recognizer,
    check_language,
    find_folder,
    identify,
    model_files,
    opening,
)
from tts_compress.models.speakers import primary_language

EXTRA = "transformers"

_SHORTEST_S = 0.1
"""Shorter sounds hold no word, and less than one frame of an encoder makes it fail."""


def open_recognizer(model: str, language: str) -> Recognizer:
    """Open a model: a folder with safetensors files, or a name on the Hugging Face hub.

    No code of a model's authors is run and no pickle is read. Only a Whisper states which languages
    it knows; choose others yourself.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCTC, AutoModelForSpeechSeq2Seq, AutoProcessor

    if not model:
        raise EvaluationError(
            "'transformers' needs a model; give a name on the hub or a folder, such as "
            "transformers:openai/whisper-small"
        )
    with opening("transformers", model):
        folder = find_folder(model)
        source = model if folder is None else str(folder)
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        is_ctc = type(config) in AutoModelForCTC._model_mapping  # noqa: SLF001  the library's table
        kind = AutoModelForCTC if is_ctc else AutoModelForSpeechSeq2Seq
        opened = kind.from_pretrained(
            source, config=config, trust_remote_code=False, use_safetensors=True, dtype="float32"
        )
        processor = AutoProcessor.from_pretrained(source, trust_remote_code=False)
    decoded = _decoded_language(opened, model, language)
    revision = getattr(config, "_commit_hash", None)
    which = f"revision {revision[:12]}" if folder is None and revision else None
    if which is None:
        which = identify(model_files(Path(source)))
    name = model if folder is None else folder.name
    opened = opened.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    device, stated = str(opened.device.type), f", language {decoded}" if decoded else ""
    return Recognizer(
        describe=lambda: (
            f"transformers {version('transformers')} (torch {version('torch')}), "
            f"{type(opened).__name__} {name} ({which}), greedy, {device}{stated}"
        ),
        listen=partial(_listen, opened, processor, decoded),
        sample_rate=int(processor.feature_extractor.sampling_rate),
        shortest_s=_SHORTEST_S,
        device=device,
    )


def _listen(model: Any, processor: Any, language: str | None, samples: Samples) -> str:
    """Return the words by greedy decoding in FP32.

    A Whisper hears parts of 30 seconds one by one; `whisper` cuts where nobody speaks.
    """
    longest = getattr(processor.feature_extractor, "n_samples", len(samples))
    parts = (samples[begin : begin + longest] for begin in range(0, len(samples), longest))
    return " ".join(_transcribe(model, processor, language, part) for part in parts)


def _transcribe(model: Any, processor: Any, language: str | None, samples: Samples) -> str:
    """Return the words of one call of a model."""
    import torch

    rate = int(processor.feature_extractor.sampling_rate)
    inputs = processor(
        samples, sampling_rate=rate, return_tensors="pt", return_attention_mask=True
    ).to(model.device)
    with torch.inference_mode():
        if model.can_generate():
            options = {} if language is None else {"language": language, "task": "transcribe"}
            tokens = model.generate(**inputs, do_sample=False, num_beams=1, **options)
        else:
            tokens = model(**inputs).logits.argmax(-1)
    return str(processor.batch_decode(tokens, skip_special_tokens=True)[0])


def _decoded_language(model: Any, name: str, language: str) -> str | None:
    """Return the language's code for a Whisper of several languages; None for other models."""
    if model.config.model_type != "whisper":
        return None
    tokens = getattr(model.generation_config, "lang_to_id", None) or {}
    languages = {token.strip("<|>") for token in tokens} or {"en"}
    check_language(f"transformers:{name}", languages, language)
    return primary_language(language) if tokens else None
