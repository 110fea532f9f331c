"""NaturalSpeech2 by Amphion: a WaveNet that denoises EnCodec's latents, in a recording's voice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.base import UNLIKE_UPSTREAM, Prompt
from tts_compress.models.naturalspeech2.components import ROLES
from tts_compress.models.naturalspeech2.distillation import OBJECTIVES
from tts_compress.models.naturalspeech2.loaded import Loaded
from tts_compress.models.naturalspeech2.options import NS2Options
from tts_compress.models.naturalspeech2.settings import SETTINGS
from tts_compress.models.naturalspeech2.source import REFERENCE, NS2Source
from tts_compress.models.naturalspeech2.speech import ACCEPTED_S, SAMPLE_RATE, NS2Speech
from tts_compress.models.naturalspeech2.upstream import AMPHION
from tts_compress.models.recording import check_duration
from tts_compress.models.saved import WEIGHTS
from tts_compress.models.torch_components import find_components
from tts_compress.models.torch_model import TorchFamilyModel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tts_compress.models.base import Component
    from tts_compress.models.distillation import Objective

__all__ = ["NaturalSpeech2Model"]


class NaturalSpeech2Model(TorchFamilyModel[NS2Source, NS2Options, Loaded]):
    """A NaturalSpeech2 model, from its files or compressed in memory."""

    family = AMPHION.family
    roles = ROLES
    sample_rate = SAMPLE_RATE

    @property
    def inference(self) -> Any:
        """The official `NS2Inference`, whose `inference` works as ever once its `args` are set.

        Raises:
            ModelError: No clone is named, or the files cannot be read or do not fit each other.
            ArtifactError: An artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return self.loaded.value.inference

    def with_prompt(self, prompt: Prompt) -> NaturalSpeech2Model:
        """Return this model with another recording; the system does not ask what is said in it.

        Raises:
            ModelError: The recording cannot be read, or is too short or too long.
        """
        if prompt.audio is None:
            return self
        check_duration(prompt.audio, ACCEPTED_S)
        return replace(self, prompt=Prompt(audio=prompt.audio))

    def objectives(self) -> tuple[Objective, ...]:
        """Return what there is to imitate, in the order data flows."""
        return OBJECTIVES

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, normalize

        # Attention hides three of its four projections until it is opened.
        return find_components(normalize(copy_sharing_tensors(self.root())), ROLES, self.layers)

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        diffusion = self.loaded.value.settings.model["diffusion"]
        wavenet, audio = diffusion["wavenet"], self.prompt.audio
        return {
            "sample rate": f"{SAMPLE_RATE} Hz",
            "estimator": f"WaveNet, {wavenet['num_layers']} layers of width "
            f"{wavenet['hidden_size']}",
            "solver": f"{self.options.inference_step} steps, {diffusion['ode_solver']}",
            UNLIKE_UPSTREAM: "dropout is off here, where the script leaves it on",
            "recording": "none" if audio is None else audio.name,
        }

    def _speech(self) -> NS2Speech:
        if self.prompt.audio is None:
            raise ModelError(
                f"{self.spec!r} has no recording to speak by; put reference.wav beside its "
                "checkpoint, or give a prompt with audio"
            )
        check_duration(self.prompt.audio, ACCEPTED_S)
        loaded = self.loaded.value
        return NS2Speech(
            official=loaded.official,
            inference=loaded.inference,
            recording=self.prompt.audio,
            options=self.options,
        )

    def _write(self, directory: Path) -> None:
        from tts_compress.models.naturalspeech2.tables import drop_tables
        from tts_compress.torch.layers.checkpoint import write_root
        from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

        root = (
            self.root() if self.manifest is None else drop_tables(copy_sharing_tensors(self.root()))
        )
        settings = replace(self.loaded.value.settings, options=self.options)
        write_root(root, directory / WEIGHTS, self.layers)
        (directory / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
        if (audio := self.prompt.audio) is not None:
            shutil.copyfile(audio, directory / f"{REFERENCE}{audio.suffix.lower()}")
