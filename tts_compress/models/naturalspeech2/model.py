"""NaturalSpeech2 by Amphion: a WaveNet that denoises EnCodec's latents, in a recording's voice."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tts_compress.models.base import UNLIKE_UPSTREAM, Component
from tts_compress.models.distillation import Objective
from tts_compress.models.naturalspeech2 import FAMILY
from tts_compress.models.naturalspeech2.files import (
    REFERENCE,
    SETTINGS,
    NS2Options,
    NS2Source,
    find_source,
)
from tts_compress.models.naturalspeech2.network import NS2Networks, find_tables, load_networks
from tts_compress.models.naturalspeech2.speech import SAMPLE_RATE, NS2Speech, check_recording
from tts_compress.models.torch_components import find_components
from tts_compress.models.torch_model import TorchFamilyModel


class NaturalSpeech2Model(TorchFamilyModel[NS2Source, NS2Options, NS2Networks]):
    """A NaturalSpeech2 model, from its files or compressed in memory.

    It is opened from the folder of a checkpoint, of a saved model or of an artifact;
    `?inference_step=20` behind it sets the steps.
    """

    family = FAMILY.name
    example = "inference_step=20"
    find = find_source
    read = load_networks
    check_recording = check_recording
    tables = find_tables
    sample_rate = SAMPLE_RATE
    # The codec's tables are no operators' weights.
    roles: ClassVar = {
        "prompt_lin": "projection of the prompt",
        "prompt_encoder": "prompt encoder",
        "query_emb": "queries of the voice",
        "query_attn": "attention to the voice",
        "prior_encoder.encoder": "text encoder",
        "prior_encoder.duration_predictor": "duration predictor",
        "prior_encoder.pitch_predictor": "pitch predictor",
        "prior_encoder.pitch_embedding": "pitch embedding",
        "diffusion.diff_estimator": "diffusion estimator",
        "codec.encoder": "audio codec's encoder",
        "codec.decoder": "audio codec's decoder",
    }

    @property
    def inference(self) -> Any:
        """The official `NS2Inference`, whose `inference` works as ever once its `args` are set.

        Raises:
            ModelError: No clone is named, or the files cannot be read or do not fit each other.
            ArtifactError: An artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return self.loaded.inference

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows.

        The estimator's calls are the steps of the original's own trajectories: its output for each
        state that the solver reaches. The predictors of durations and pitch are not trained.
        """
        return (
            Objective(module="prompt_encoder", loss="mse"),
            Objective(module="prior_encoder.encoder", loss="mse"),
            Objective(module="diffusion.diff_estimator", loss="mse"),
            Objective(module="codec.decoder", loss="waveform"),
        )

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, normalize

        # Attention hides three of its four projections until it is opened.
        return find_components(
            normalize(copy_sharing_tensors(self.root())), self.roles, self.layers
        )

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        diffusion = self.loaded.settings.model["diffusion"]
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
        recording = self._recording()  # refused before anything is loaded
        return NS2Speech(
            amphion=self.loaded.amphion,
            inference=self.loaded.inference,
            recording=recording,
            options=self.options,
        )

    def _write(self, directory: Path) -> None:
        settings = replace(self.loaded.settings, options=self.options)
        (directory / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
        if (audio := self.prompt.audio) is not None:
            shutil.copyfile(audio, directory / f"{REFERENCE}{audio.suffix.lower()}")
