"""GPT-SoVITS: a language model of semantic tokens, and a synthesizer that speaks as a recording."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.components import NAMED_CALLS, ROLES
from tts_compress.models.gpt_sovits.loaded import Loaded, peek_sample_rate
from tts_compress.models.gpt_sovits.options import GptSovitsOptions
from tts_compress.models.gpt_sovits.reference import ACCEPTED_S, write_prompt
from tts_compress.models.gpt_sovits.settings import SETTINGS
from tts_compress.models.gpt_sovits.source import GptSovitsSource
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS
from tts_compress.models.recording import check_duration, exchange_recording
from tts_compress.models.torch_model import TorchFamilyModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from tts_compress.models.base import Prompt
    from tts_compress.models.distillation import Objective
    from tts_compress.models.gpt_sovits.settings import GptSovitsSettings
    from tts_compress.models.gpt_sovits.speech import GptSovitsSpeech
    from tts_compress.models.language_model import Tokens

__all__ = ["GptSovitsModel"]


class GptSovitsModel(TorchFamilyModel[GptSovitsSource, GptSovitsOptions, Loaded]):
    """A GPT-SoVITS model, from its files or compressed in memory."""

    family = GPT_SOVITS.family
    roles = ROLES

    @property
    def version(self) -> str:
        """`v1`, `v2`, `v2Pro`, `v2ProPlus`, `v3` or `v4`."""
        return self.source.version

    @property
    def settings(self) -> GptSovitsSettings:
        """What its networks are built from."""
        return self.loaded.settings

    @cached_property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return peek_sample_rate(self.source)

    @property
    def tts(self) -> Any:
        """The official `TTS` object, whose `run` works as ever.

        Raises:
            ModelError: The model cannot be read, or there is no recording to speak by.
            MissingExtraError: A package is not installed.
        """
        return self._speech().tts

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        network, audio = self.settings.t2s["model"], self.prompt.audio
        return {
            "version": self.version,
            "sample rate": f"{self.sample_rate} Hz",
            "language model": f"{network.get('n_layer')} layers of width "
            f"{network.get('hidden_dim')}, {network.get('vocab_size')} tokens",
            "language": self.options.text_lang,
            "recording": "none" if audio is None else audio.name,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return what a compressed model can learn from this one, in the order data flows."""
        from tts_compress.models.gpt_sovits.distillation import find_objectives

        return find_objectives(self.settings)

    def named_calls(self) -> Mapping[str, tuple[str, ...]]:
        """Return what upstream calls the components by, where that is not the module itself."""
        there = self.components()
        return {name: methods for name, methods in NAMED_CALLS.items() if name in there}

    def with_prompt(self, prompt: Prompt) -> GptSovitsModel:
        """Return this model with another recording, or another text of the same one.

        The text of the former recording does not stay when only the recording is exchanged.

        Raises:
            ModelError: The recording cannot be read, or is too short or too long.
        """
        if prompt.audio is not None:
            check_duration(prompt.audio, ACCEPTED_S)
        return replace(self, prompt=exchange_recording(self.prompt, prompt))

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the semantic tokens.

        Raises:
            TextError: There is nothing to speak in the text.
            ModelError: There is no recording to speak by, or upstream's code fails.
        """
        from tts_compress.models.gpt_sovits.tokens import join_segments
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speech()
        with paired_noise(seed):
            return join_segments(speech.tokens(text), self._end)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, 1, V]`.

        Raises:
            TextError: There is nothing to speak in the text.
            ModelError: There is no recording to speak by, or the tokens are not of this text.
        """
        from tts_compress.models.gpt_sovits.tokens import score_tokens

        speech = self._speech()
        return score_tokens(
            self.root().get_submodule("t2s"),
            speech.segments(text),
            speech.prompt_tokens,
            tokens,
            self._end,
        )

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write all networks, settings, tokenizer, recording and manifest, all or nothing.

        A model that was not compressed is written in upstream's own formats, with a
        `tts_infer.yaml` that names the files.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The recording cannot be read.
        """
        if self.manifest is None:
            return self.save_official(directory, force=force)
        return super().save(directory, force=force)

    def save_official(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write the T2S and the SoVITS model as upstream's training does, in FP16, all or nothing.

        Upstream's own programs load them. Also for a model compressed by `fp16`; others have more
        than these files can say.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The model is compressed in a way that upstream's formats do not have.
        """
        from tts_compress.models.gpt_sovits.official_files import write_official

        return write_official(self.loaded, self.source, self.prompt, Path(directory), force=force)

    def _write(self, directory: Path) -> None:
        loaded = self.loaded
        settings = replace(loaded.settings, options=self.options.stated())
        (directory / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
        loaded.tokenizer.save_pretrained(directory)
        write_prompt(self.prompt, directory)

    @property
    def _end(self) -> int:
        """The token that ends speech."""
        return int(self.settings.t2s["model"]["EOS"])

    def _speech(self) -> GptSovitsSpeech:
        return self._hearing

    @cached_property
    def _hearing(self) -> GptSovitsSpeech:
        """What speaks by the recording, which upstream hears once."""
        from tts_compress.models.gpt_sovits.assembly import assemble
        from tts_compress.models.gpt_sovits.speech import GptSovitsSpeech

        if self.prompt.audio is None:
            raise ModelError(
                f"{self.spec!r} has no recording to speak by; put reference.wav and "
                "reference.txt (what is said in it) beside its configuration, or give a "
                "prompt with audio and text"
            )
        check_duration(self.prompt.audio, ACCEPTED_S)
        loaded = self.loaded
        tts = assemble(loaded.official, loaded.settings, loaded.root, loaded.tokenizer)
        speech = GptSovitsSpeech(loaded.official, tts, self.options)
        speech.hear(self.prompt.audio, self.prompt.text)
        return speech
