"""Voices of transformers that are language models, compared along given speech."""

from dataclasses import fields

import numpy as np
import numpy.typing as npt
import torch

from tts_compress.artifact import Manifest
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import Reading, Tokens
from tts_compress.models.pretrained import quiet
from tts_compress.models.torch_noise import paired_noise
from tts_compress.models.transformers.latents import read_rows, spoken_rows
from tts_compress.models.transformers.model import TransformersModel
from tts_compress.models.transformers.voice import TokenKind

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


class TokenTransformersModel(TransformersModel):
    """A voice that draws tokens of several codebooks in each step."""

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the tokens."""
        voice, kind = self._speech().voice, self._kind
        problem = model_errors(f"the model cannot speak {text[:40]!r}")
        with problem, quiet(), paired_noise(seed), torch.inference_mode():
            ids = kind.draw(voice, text).cpu().numpy()
        special = kind.special(voice.root.config)
        return Tokens(ids=ids, chosen=~np.isin(ids[1:], special), stop=special[0])

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, K, V]`."""
        voice, ids = self._speech().voice, tokens.ids
        rows = torch.from_numpy(ids).to(voice.root.device)
        with model_errors(f"the tokens are not ones of {text[:40]!r}"), quiet(), torch.no_grad():
            read = self._kind.read(voice, text, rows)
        scores: npt.NDArray[np.float32] = read.float().cpu().numpy()
        if scores.shape[:2] != (len(ids) - 1, *ids.shape[1:]):
            raise ModelError(f"tokens of shape {ids.shape} are not ones of {text[:40]!r}")
        return scores

    @property
    def _kind(self) -> TokenKind:
        assert self.system.tokens is not None, "`open_voice` chose the class by it"
        return self.system.tokens


def open_voice(location: str, spec: str, manifest: Manifest | None = None) -> TransformersModel:
    """Open a voice, of the class that its kind has."""
    model = TransformersModel.open(location, spec, manifest)
    if not model.system.writes_latents and model.system.tokens is None:
        return model
    same = {field.name: getattr(model, field.name) for field in fields(model)}
    kind = LatentTransformersModel if model.system.writes_latents else TokenTransformersModel
    return kind(**same)
