"""Voices of transformers that are language models of latents, compared along given speech."""

from dataclasses import fields

import numpy as np
import numpy.typing as npt
import torch

from tts_compress.artifact import Manifest
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import Reading
from tts_compress.models.pretrained import quiet
from tts_compress.models.torch_noise import paired_noise
from tts_compress.models.transformers.latents import read_rows, spoken_rows
from tts_compress.models.transformers.model import TransformersModel

_THRESHOLD = -4.0  # what the official code takes where nothing is stated


class LatentTransformersModel(TransformersModel):
    """A voice that writes latents until a number says that its speech ends."""

    def generate_latents(self, text: str, *, seed: int | None) -> npt.NDArray[np.float32]:
        """Speak as `synthesize` does and return what the language model read."""
        voice = self._speech().voice
        problem = model_errors(f"the model cannot speak {text[:40]!r}")
        with problem, quiet(), paired_noise(seed):
            return spoken_rows(voice, text).cpu().numpy()

    def read_latents(self, text: str, latents: npt.NDArray[np.float32]) -> Reading:
        """Return the answers to latents that another model spoke."""
        voice = self._speech().voice
        if latents.ndim != 2 or latents.shape[1] != (width := voice.root.config.latent_dim):
            raise ModelError(
                f"latents of shape {latents.shape} are not ones of this model: {width}"
            )
        with model_errors(f"the model cannot read {text[:40]!r}"), quiet():
            answers, stops = read_rows(voice, text, torch.from_numpy(latents))
        stated = getattr(voice.root.generation_config, "eos_threshold", None)
        threshold = _THRESHOLD if stated is None else float(stated)
        return Reading(latents=answers.cpu().numpy(), stop=stops.cpu().numpy(), threshold=threshold)


def open_voice(location: str, spec: str, manifest: Manifest | None = None) -> TransformersModel:
    """Open a voice, of the class that its kind has."""
    model = TransformersModel.open(location, spec, manifest)
    if not model.system.writes_latents:
        return model
    same = {field.name: getattr(model, field.name) for field in fields(model)}
    return LatentTransformersModel(**same)
