"""GPT-SoVITS: a language model of semantic tokens, and a synthesizer that speaks as a recording."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tts_compress.errors import ModelError
from tts_compress.models.base import Tokens
from tts_compress.models.distillation import Objective
from tts_compress.models.gpt_sovits import FAMILY
from tts_compress.models.gpt_sovits.checkpoint import VERSIONS
from tts_compress.models.gpt_sovits.loading import Loaded, load_networks, write_official
from tts_compress.models.gpt_sovits.source import (
    SETTINGS,
    GptSovitsOptions,
    GptSovitsSource,
    check_recording,
    find_source,
    write_prompt,
)
from tts_compress.models.gpt_sovits.speech import GptSovitsSpeech
from tts_compress.models.torch_model import TorchFamilyModel
from tts_compress.models.torch_noise import paired_noise

ROLES = {
    "bert": "text encoder (Chinese)",
    "hubert": "speech encoder (recording)",
    "vits.ssl_proj": "projection of the recording to tokens",
    "t2s": "speech language model",
    "sv": "speaker encoder",
    "vits.ref_enc": "style encoder",
    "vits.sv_emb": "projection of the speaker",
    "vits.ge_to512": "projection of the style",
    "vits.enc_p": "prior encoder",
    "vits.flow": "flow",
    "vits.dec": "decoder",
    "vits.bridge": "projection of the prior",
    "vits.wns1": "condition encoder",
    "vits.cfm": "diffusion estimator",
    "vocoder": "vocoder",
}
"""Roles by component, in the order data flows; a version has some of them."""

_NAMED_CALLS = {  # methods that upstream calls on components, by component
    "t2s": ("t2s.infer_panel_batch_infer", "t2s.infer_panel_naive_batched"),
    "vits.cfm": ("vits.cfm.inference",),
    "sv": ("sv.forward3",),
}


class GptSovitsModel(TorchFamilyModel[GptSovitsSource, GptSovitsOptions, Loaded]):
    """A GPT-SoVITS model, from its files or compressed in memory.

    It is opened from upstream's `tts_infer.yaml`, from the paths of a T2S and a SoVITS model with a
    comma between, or from an artifact's folder; `?text_lang=en&top_k=5` behind it sets
    `GptSovitsOptions`. A `reference.wav` and `reference.txt` beside the configuration or the T2S
    model are the recording to speak by and its text.
    """

    family = FAMILY.name
    example = "text_lang=en&top_k=5"
    find = find_source
    read = load_networks
    check_recording = check_recording
    roles = ROLES

    @property
    def version(self) -> str:
        """`v1`, `v2`, `v2Pro`, `v2ProPlus`, `v3` or `v4`."""
        return self.source.version

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return self.source.sample_rate

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that texts may be in; the chosen one, where one was."""
        return self.options.languages(self.version)

    @property
    def language(self) -> str | None:
        """The language that was chosen for texts; None where upstream detects it."""
        return self.languages[0] if len(self.languages) == 1 else None

    def with_language(self, language: str) -> Self:
        """Return this model taking all texts for ones of this language.

        Raises:
            ModelError: It is none of `languages`.
        """
        if language == self.language:
            return self
        if language not in self.languages:
            known = ", ".join(map(repr, self.languages))
            raise ModelError(f"{self.spec!r} does not speak {language!r}; accepted: {known}")
        return self.with_options(replace(self.options, text_lang=language))

    @property
    def tts(self) -> Any:
        """The official `TTS` object, whose `run` works as ever; it needs a recording."""
        return self._speech().tts

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        network, audio = self.source.t2s, self.prompt.audio
        chosen = {n: v for n, v in self.options.stated().items() if n != "text_lang"}
        return {
            "version": self.version,
            "sample rate": f"{self.sample_rate} Hz",
            "language model": f"{network.get('n_layer')} layers of width "
            f"{network.get('hidden_dim')}, {network.get('vocab_size')} tokens",
            "language": self.options.text_lang,
            "options": ", ".join(f"{n} {v}" for n, v in chosen.items()) or "upstream's defaults",
            "recording": "none" if audio is None else audio.name,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows.

        The recording's encoders, `hubert` and `vits.ref_enc`, are called when a prompt is set.
        """
        # It returns scores, then the states before, between and behind its layers; upstream takes
        # the third from the end.
        used = max(int(self.loaded.settings.bert.get("num_hidden_layers", 0)) - 1, 0)
        first = (0,)  # the rest is the state of a next call
        vits = (
            # It returns its input, mean and log deviation of the prior, and masks.
            Objective(module="vits.enc_p", loss="mse", outputs=(1, 2), log_deviation=1),
            Objective(module="vits.flow", loss="mse"),
            Objective(module="vits.dec", loss="waveform"),
        )
        flow_matching = (
            Objective(module="vits.enc_p", loss="mse", outputs=first),
            Objective(module="vits.wns1", loss="mse", outputs=first),
            Objective(module="vits.cfm.estimator", loss="mse", outputs=first),
            Objective(module="vocoder", loss="waveform"),
        )
        return (
            Objective(module="bert", loss="mse", outputs=(used,)),
            Objective(module="hubert", loss="mse", outputs=first),
            Objective(module="vits.ref_enc", loss="mse"),
            # It scores whole utterances when it is called; step by step its methods are.
            Objective(module="t2s", loss="kl"),
            *(flow_matching if VERSIONS[self.version].vocoder else vits),
        )

    def named_calls(self) -> Mapping[str, tuple[str, ...]]:
        """Return the methods that upstream calls on components that it does not call as modules."""
        there = self.components()
        return {name: methods for name, methods in _NAMED_CALLS.items() if name in there}

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the semantic tokens."""
        speech = self._speech()
        with paired_noise(seed):
            return speech.tokens(text)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, 1, V]`."""
        return self._speech().logits(text, tokens)

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write an artifact, or by `save_official` a model that was not compressed."""
        if self.manifest is None:
            return self.save_official(directory, force=force)
        return super().save(directory, force=force)

    def save_official(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write the T2S and the SoVITS model as upstream's training does, in FP16, all or nothing.

        Upstream's own programs load them. Also for a model compressed by `fp16`; others have more
        than these files can hold.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: Upstream has no format for the model's version, or for how it is compressed.
        """
        target = Path(directory)
        write_official(self.loaded, self.source, self.prompt, target, force=force)
        return target

    def _write(self, directory: Path) -> None:
        loaded = self.loaded
        settings = replace(loaded.settings, options=self.options.stated())
        (directory / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
        loaded.tokenizer.save_pretrained(directory)
        write_prompt(self.prompt, directory)

    def _speech(self) -> GptSovitsSpeech:
        return self._cached_speech

    @cached_property
    def _cached_speech(self) -> GptSovitsSpeech:
        """The runtime, which processes the recording once."""
        recording = self._recording()
        return GptSovitsSpeech(self.loaded, self.options, recording, self.prompt.text)
