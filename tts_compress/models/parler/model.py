"""Parler-TTS: a language model over the codes of an audio codec, told in words how to speak."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.parler.components import ROLES
from tts_compress.models.parler.distillation import find_objectives
from tts_compress.models.parler.loaded import Loaded
from tts_compress.models.parler.network import write_settings
from tts_compress.models.parler.source import DESCRIPTION, ParlerSource
from tts_compress.models.parler.speech import ParlerOptions, ParlerSpeech
from tts_compress.models.parler.tables import drop_tables
from tts_compress.models.parler.tokenizers import write_tokenizers
from tts_compress.models.saved import WEIGHTS
from tts_compress.models.torch_model import TorchFamilyModel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from tts_compress.models.base import Prompt
    from tts_compress.models.distillation import Objective
    from tts_compress.models.language_model import Tokens

__all__ = ["DEFAULT_DESCRIPTION", "ParlerModel"]

DEFAULT_DESCRIPTION = (
    "A woman speaks at a moderate pace with a clear and natural voice, close to the microphone, "
    "and nothing else can be heard."
)
"""How to speak where neither a prompt nor the model's folder says it."""


class ParlerModel(TorchFamilyModel[ParlerSource, ParlerOptions, Loaded]):
    """A Parler-TTS model, from its files or compressed in memory.

    Speech ends where the model ends it, and after `max_length` steps in any case.
    """

    family = "parler-tts"
    roles = ROLES

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        codec = self.source.read_config()["audio_encoder"]
        rate = codec.get("sampling_rate")
        if not isinstance(rate, int) or rate <= 0:
            raise ModelError(f"the codec of '{self.spec}' has the sampling rate {rate!r}, not Hz")
        return rate

    @property
    def description(self) -> str:
        """How it speaks, in words; what the prompt says goes before what the folder does."""
        return self.prompt.description or self.source.description() or DEFAULT_DESCRIPTION

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        config = self.source.read_config()
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "codebooks": config["decoder"].get("num_codebooks"),
            "codec": config["audio_encoder"].get("model_type"),
            "description": self.description,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return what there is to imitate, in the order data flows."""
        return find_objectives(self.root())

    def with_prompt(self, prompt: Prompt) -> ParlerModel:
        """Return this model with another description; recordings are not used by this system.

        Raises:
            ModelError: The description is empty.
        """
        if prompt.description is None:
            return self
        if not (description := prompt.description.strip()):
            raise ModelError("the description is empty; say in words how to speak, or leave it out")
        return replace(self, prompt=replace(self.prompt, description=description))

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the tokens.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
            ModelError: The model cannot be read or run.
        """
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speech()
        with paired_noise(seed):
            return speech.tokens(text)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, K, V]`.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
            ModelError: The model cannot be read or run, or the tokens are not its own.
        """
        return self._speech().logits(text, tokens)

    def _speech(self) -> ParlerSpeech:
        return ParlerSpeech(
            root=self.root(),
            tokenizers=self.loaded.value.tokenizers.value,
            description=self.description,
            options=self.options,
        )

    def _write(self, directory: Path) -> None:
        """Write what the official `from_pretrained` reads, where nothing is compressed."""
        from tts_compress.torch.layers.checkpoint import write_root
        from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

        root = (
            self.root() if self.manifest is None else drop_tables(copy_sharing_tensors(self.root()))
        )
        write_root(root, directory / WEIGHTS, self.layers)
        write_settings(root, directory)
        write_tokenizers(self.loaded.value.tokenizers.value, directory)
        (directory / DESCRIPTION).write_text(f"{self.description}\n", encoding="utf-8")
