"""Speaking with the official `TTS` object: by its own `run`, and never past an error of it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tts_compress.audio import Audio
from tts_compress.errors import ModelError, reason
from tts_compress.models.base import check_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from tts_compress.models.gpt_sovits.options import GptSovitsOptions
    from tts_compress.models.gpt_sovits.package import Official

__all__ = ["GptSovitsSpeech", "Segment"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A part of a text that the language model speaks in one go."""

    phones: Tensor
    """`[N]`, int64: those of the prompt's text, then its own."""

    bert: Tensor
    """`[1024, N]`: what the text encoder says of each."""


class GptSovitsSpeech:
    """The official object with what it needs to speak.

    Args:
        official: Upstream's modules.
        tts: The official `TTS` object, as `assemble` makes it; no other thread uses it.
        options: How it is run.

    Raises:
        ModelError: Of its methods: upstream's code fails.
        TextError: Of its methods: there is nothing to speak in the text.
    """

    def __init__(self, official: Official, tts: Any, options: GptSovitsOptions) -> None:
        self._official = official
        self._tts = tts
        self._options = options
        self._prompt: dict[str, Any] = {}

    @property
    def tts(self) -> Any:
        """The official object."""
        return self._tts

    def hear(self, recording: Path, text: str | None) -> None:
        """Prepare to speak by a recording.

        It is done before any noise is chosen: the speech encoder draws random numbers without using
        them, the first time only, and what is drawn after them would differ.

        Args:
            recording: Of 3 to 10 seconds.
            text: What is said in it; None lets the language model begin without an example.
        """
        given = str(recording.resolve())
        self._prompt = {"ref_audio_path": given, "prompt_text": text or ""}
        try:
            with self._official.running():
                self._tts.set_ref_audio(given)
                if text:
                    self._read_prompt(text)
        # Upstream's code and its text frontends fail in ways of their own.
        except Exception as error:
            raise ModelError(f"cannot speak by '{recording}': {reason(error)}") from error

    def speak(self, text: str) -> Audio:
        """Return what the official `run` says, with the noise that torch draws."""
        check_text(text)
        try:
            with self._official.running(), _hash_seed_kept():
                # All of it: after an error `run` gives silence first, and raises it then.
                pieces = list(self._tts.run(self._inputs(text)))
        except Exception as error:
            raise ModelError(f"GPT-SoVITS cannot speak {text[:40]!r}: {reason(error)}") from error
        samples = np.concatenate([wave for _, wave in pieces]).astype(np.float32)
        if not samples.any():
            raise ModelError(f"GPT-SoVITS speaks only silence for {text[:40]!r}")
        return Audio(samples=samples / np.float32(32768), sample_rate=int(pieces[0][0]))

    def tokens(self, text: str) -> list[Tensor]:
        """Return the semantic tokens that `speak` would make audio of, `[T]` for each segment."""
        decoder = self._tts.t2s_model.model
        said: list[Tensor] = []

        def infer(*arguments: Any, **keywords: Any) -> Any:
            found, counts = type(decoder).infer_panel_batch_infer(decoder, *arguments, **keywords)
            said.extend(ids[-count:] for ids, count in zip(found, counts, strict=True))
            return found, counts

        # `run` takes the method from the object anew each time.
        decoder.infer_panel_batch_infer = infer
        try:
            self.speak(text)
        finally:
            del decoder.infer_panel_batch_infer
        return said

    def segments(self, text: str) -> list[Segment]:
        """Return the parts that `speak` would speak a text in, in that order."""
        check_text(text)
        tts, options = self._tts, self._options
        try:
            with self._official.running():
                found = tts.text_preprocessor.preprocess(
                    text, options.text_lang, options.text_split_method, tts.configs.version
                )
                prompt = tts.prompt_cache if self._prompt.get("prompt_text") else None
                # `run` begins with the shortest, except where it says itself that it does not.
                by_length = options.speed_factor == 1 and not tts.configs.use_vocoder
                batches, _ = tts.to_batch(
                    found, prompt_data=prompt, batch_size=1, split_bucket=by_length
                )
        except Exception as error:
            raise ModelError(f"GPT-SoVITS cannot read {text[:40]!r}: {reason(error)}") from error
        return [
            Segment(phones=batch["all_phones"][0], bert=batch["all_bert_features"][0])
            for batch in batches
        ]

    @property
    def prompt_tokens(self) -> Tensor | None:
        """The semantic tokens of the recording, `[T]`; None where nobody said what is in it."""
        if not self._prompt.get("prompt_text"):
            return None
        found: Tensor = self._tts.prompt_cache["prompt_semantic"]
        return found

    def _inputs(self, text: str) -> dict[str, Any]:
        options = self._options
        return self._prompt | {
            "text": text,
            "text_lang": options.text_lang,
            "prompt_lang": options.prompt_lang,
            "text_split_method": options.text_split_method,
            "top_k": options.top_k,
            "top_p": options.top_p,
            "temperature": options.temperature,
            "repetition_penalty": options.repetition_penalty,
            "speed_factor": options.speed_factor,
            "sample_steps": options.sample_steps,
            "batch_size": 1,
        }

    def _read_prompt(self, text: str) -> None:
        """Have the text frontend read the prompt, as `run` would the first time."""
        language, cache = self._options.prompt_lang, self._tts.prompt_cache
        said = text.strip("\n")
        if said[-1] not in self._official.inference.splits:
            said += "." if language == "en" else "。"
        phones, bert, norm_text = self._tts.text_preprocessor.segment_and_extract_feature_for_text(
            said, language, self._tts.configs.version
        )
        read: Mapping[str, Any] = {
            "prompt_text": said,
            "prompt_lang": language,
            "phones": phones,
            "bert_features": bert,
            "norm_text": norm_text,
        }
        cache.update(read)


@contextmanager
def _hash_seed_kept() -> Iterator[None]:
    """Give back the variable that `run` writes its seed to; Python does not start with some."""
    before = os.environ.get("PYTHONHASHSEED")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONHASHSEED", None)
        else:
            os.environ["PYTHONHASHSEED"] = before
