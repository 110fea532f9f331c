"""Parler-TTS: a language model over the codes of an audio codec; the voice is described by text."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt, Tokens
from tts_compress.models.distillation import Objective
from tts_compress.models.parler import FAMILY
from tts_compress.models.parler.files import (
    DESCRIPTION,
    ParlerOptions,
    ParlerSource,
    find_source,
)
from tts_compress.models.parler.network import (
    ParlerNetworks,
    find_tables,
    load_networks,
    write_settings,
    write_tokenizers,
)
from tts_compress.models.parler.speech import ParlerSpeech
from tts_compress.models.torch_model import TorchFamilyModel

DEFAULT_DESCRIPTION = (
    "A woman speaks at a moderate pace with a clear and natural voice, close to the microphone, "
    "and nothing else can be heard."
)
"""Description of the voice where neither the prompt nor the model's folder has one."""


class ParlerModel(TorchFamilyModel[ParlerSource, ParlerOptions, ParlerNetworks]):
    """A Parler-TTS model, from its files or compressed in memory.

    It is opened from a folder that the official `save_pretrained` wrote, with the tokenizer's files
    and optionally `description.txt`; from a name on the model hub; or from an artifact's folder.
    Speech ends where the model ends it, and after `max_length` steps in any case.
    """

    family = FAMILY.name
    find = find_source
    read = load_networks
    tables = find_tables
    roles: ClassVar = {
        "text_encoder": "description encoder",
        "enc_to_dec_proj": "projection of the description",
        "embed_prompts": "text embedding",
        "decoder": "speech language model",
        "audio_encoder": "audio codec",
    }

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
        """Description of the voice: the prompt's, else the folder's, else a common one."""
        return self.prompt.description or DEFAULT_DESCRIPTION

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        config = self.source.read_config()
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "codebooks": config["decoder"].get("num_codebooks"),
            "codec": config["audio_encoder"].get("model_type"),
            "description": self.description,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows."""
        # The codec of transformers has its decoder one level higher than DAC's own.
        codec: Any = self.root().get_submodule("audio_encoder")
        codec_decoder = "model.decoder" if hasattr(codec, "model") else "decoder"
        encoder = Objective(
            module="text_encoder",
            loss="mse",
            outputs=(0,),
            encodes="description",
        )
        # Scores of the codebooks; text may share the decoder's positions with speech.
        decoder = Objective(module="decoder", loss="kl", outputs=(0,), steps_of="input_ids")
        sound = Objective(module=f"audio_encoder.{codec_decoder}", loss="waveform")
        return (encoder, decoder, sound)

    def with_prompt(self, prompt: Prompt) -> "ParlerModel":
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
            tokenizers=self.loaded.tokenizers(),
            description=self.description,
            options=self.options,
        )

    def _write(self, directory: Path) -> None:
        """Write what the official `from_pretrained` reads, where nothing is compressed."""
        write_settings(self.root(), directory)
        write_tokenizers(self.loaded.tokenizers(), directory)
        (directory / DESCRIPTION).write_text(f"{self.description}\n", encoding="utf-8")
