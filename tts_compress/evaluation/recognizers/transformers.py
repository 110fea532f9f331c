"""Recognizers in transformers: models with CTC, and encoders with a decoder such as Whisper."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from tts_compress.audio import Audio
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import (
    check_language,
    find_folder,
    identify,
    model_files,
    opening,
)
from tts_compress.evaluation.samples import finite_samples
from tts_compress.models.speakers import primary_language

EXTRA = "transformers"

_SHORTEST_S = 0.1
"""Shorter sounds hold no word, and less than one frame of an encoder makes it fail."""


class Transformers:
    """A model in FP32 and its processor; its decoding is greedy.

    A Whisper transcribes 30 seconds, and what comes after is lost; `whisper` transcribes all.

    Args:
        model: The module, on its device.
        processor: The `AutoProcessor`.
        name: The model's name on the hub, or that of its folder, and which one it is.
        language: Code of the language, for a Whisper of several; None for others.
    """

    def __init__(self, model: Any, processor: Any, name: str, language: str | None) -> None:
        self._model = model
        self._processor = processor
        self._name = name
        self._language = language

    @property
    def device(self) -> str:
        """`cuda` where torch sees a GPU."""
        return str(self._model.device.type)

    @property
    def description(self) -> str:
        """Versions, model, files, and the language where the model takes one."""
        language = "" if self._language is None else f", language {self._language}"
        return (
            f"transformers {version('transformers')} (torch {version('torch')}), "
            f"{type(self._model).__name__} {self._name}, greedy, {self.device}{language}"
        )

    def transcribe(self, audio: Audio) -> str:
        """Return the transcript; empty where no words are found."""
        import torch

        rate = int(self._processor.feature_extractor.sampling_rate)
        samples = finite_samples(audio, rate)
        if len(samples) < _SHORTEST_S * rate:
            return ""
        inputs = self._processor(
            samples, sampling_rate=rate, return_tensors="pt", return_attention_mask=True
        ).to(self._model.device)
        with torch.inference_mode():
            if self._model.can_generate():
                options = {} if self._language is None else {"language": self._language}
                options |= {"task": "transcribe"} if options else {}
                found = self._model.generate(**inputs, do_sample=False, num_beams=1, **options)
            else:
                found = self._model(**inputs).logits.argmax(-1)
        return str(self._processor.batch_decode(found, skip_special_tokens=True)[0]).strip()


def open_recognizer(model: str, language: str) -> Transformers:
    """Open a model: a folder with safetensors files, or a name on the Hugging Face hub.

    No code of a model's authors is run and no pickle is read. Only a Whisper states which languages
    it knows; choose others yourself.

    Raises:
        EvaluationError: It cannot be opened, or does not know the language.
        ImportError: transformers or torch is not installed.
    """
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCTC,
        AutoModelForSpeechSeq2Seq,
        AutoProcessor,
    )

    if not model:
        raise EvaluationError(
            "'transformers' needs a model; give a name on the hub or a folder, such as "
            "transformers:openai/whisper-small"
        )
    with opening("transformers", model):
        folder = find_folder(model)
        place = model if folder is None else str(folder)
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        is_ctc = type(config) in AutoModelForCTC._model_mapping  # noqa: SLF001  the library's table
        kind = AutoModelForCTC if is_ctc else AutoModelForSpeechSeq2Seq
        opened = kind.from_pretrained(
            place, config=config, trust_remote_code=False, use_safetensors=True, dtype="float32"
        )
        processor = AutoProcessor.from_pretrained(place, trust_remote_code=False)
    decoded = _decoded_language(opened, model, language)
    revision = getattr(config, "_commit_hash", None)
    which = f"revision {revision[:12]}" if folder is None and revision else None
    if which is None:
        which = identify(model_files(Path(place)))
    name = model if folder is None else folder.name
    opened = opened.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    return Transformers(opened, processor, f"{name} ({which})", decoded)


def _decoded_language(model: Any, name: str, language: str) -> str | None:
    """Return the language's code for a Whisper of several languages; None for other models."""
    if model.config.model_type != "whisper":
        return None
    tokens = getattr(model.generation_config, "lang_to_id", None) or {}
    known = {token.strip("<|>") for token in tokens} or {"en"}
    check_language(f"transformers:{name}", known, language)
    return primary_language(language) if tokens else None
