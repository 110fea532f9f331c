"""F5-TTS: a diffusion transformer that speaks as a recording does, and a Vocos vocoder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tts_compress.models.f5.components import ROLES
from tts_compress.models.f5.config import write_config
from tts_compress.models.f5.distillation import OBJECTIVES
from tts_compress.models.f5.files import CONFIG, VOCABULARY, VOCODER, F5Source
from tts_compress.models.f5.loaded import Loaded
from tts_compress.models.f5.network import forget_text
from tts_compress.models.f5.options import F5Options
from tts_compress.models.f5.package import SAMPLE_RATE
from tts_compress.models.f5.reference import check_recording, prepare_reference, write_recording
from tts_compress.models.f5.speech import F5Runtime, check_symbols, speak, split_text
from tts_compress.models.recording import REFERENCE, REFERENCE_TEXT, exchange_recording
from tts_compress.models.saved import WEIGHTS
from tts_compress.models.torch_model import TorchFamilyModel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tts_compress.audio import Audio
    from tts_compress.models.base import Prompt
    from tts_compress.models.distillation import Objective
    from tts_compress.models.f5.reference import Reference

__all__ = ["F5Model"]


class F5Model(TorchFamilyModel[F5Source, F5Options, Loaded]):
    """An F5-TTS model, from its files or with modules exchanged in memory."""

    family = "f5-tts"
    roles = ROLES
    sample_rate = SAMPLE_RATE

    @property
    def api(self) -> Any:
        """The official `f5_tts.api.F5TTS`, whose `infer` works as ever.

        Raises:
            ModelError: The files cannot be read, or do not fit each other.
            ArtifactError: A saved artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return self.loaded.value.api

    def with_prompt(self, prompt: Prompt) -> F5Model:
        """Return this model with another recording, or another text of the same one.

        The text of the former recording does not stay when only the recording is exchanged.

        Raises:
            ModelError: The recording cannot be read.
        """
        if prompt.audio is not None:
            check_recording(prompt.audio)
        return replace(self, prompt=exchange_recording(self.prompt, prompt))

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        config, audio = self.source.config, self.prompt.audio
        return {
            "sample rate": f"{SAMPLE_RATE} Hz",
            "transformer": f"{config.backbone}, {config.arch.get('depth')} layers "
            f"of width {config.arch.get('dim')}",
            "solver": f"{self.options.nfe_step} steps, guidance {self.options.cfg_strength:g}",
            "recording": "none" if audio is None else audio.name,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return what there is to imitate, in the order data flows."""
        return OBJECTIVES

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Upstream's own `infer` speaks on threads of its own, where noise cannot be chosen.

        Raises:
            TextError: The text is empty, has nothing to speak, or a sentence of it is too long.
            ModelError: There is no recording to speak by, or the modules cannot be run.
        """
        parts = split_text(text, self._reference, self.options)
        check_symbols(self.api, text)
        try:
            return speak(self.api, self._reference, parts, self.options, seed)
        finally:
            forget_text(self.api)

    @cached_property
    def _reference(self) -> Reference:
        """The recording, prepared as upstream does."""
        return prepare_reference(self.prompt, self.spec)

    def _speech(self) -> F5Runtime:
        prepare_reference(self.prompt, self.spec)  # refused before anything is loaded
        return F5Runtime(self.api, self.prompt, self.options)

    def _write(self, directory: Path) -> None:
        from tts_compress.torch.layers.checkpoint import write_root

        paths = self.source.paths
        write_root(self.root(), directory / WEIGHTS, self.layers)
        write_config(directory / CONFIG, self.source.config, self.options)
        shutil.copyfile(paths.vocabulary, directory / VOCABULARY)
        shutil.copyfile(paths.vocoder_config, directory / VOCODER)
        if self.prompt.audio is not None:
            write_recording(self.prompt.audio, directory / REFERENCE)
        if self.prompt.text is not None:
            (directory / REFERENCE_TEXT).write_text(self.prompt.text, encoding="utf-8")
