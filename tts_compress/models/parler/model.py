"""Parler-TTS: a language model over the codes of an audio codec; the voice is described by text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from tts_compress.audio import Audio
from tts_compress.errors import ModelError, TextError, model_errors
from tts_compress.models.base import Objective, Prompt, Tokens, check_text
from tts_compress.models.parler import FAMILY
from tts_compress.models.parler.network import (
    DESCRIPTION,
    ParlerNetworks,
    ParlerOptions,
    ParlerSource,
    Tokenizers,
    find_source,
    find_tables,
    load_networks,
    write_tokenizers,
)
from tts_compress.models.pretrained import CONFIG, quiet, write_settings
from tts_compress.models.torch_model import TorchFamilyModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlerSpeech:
    """The official object with what it needs to speak."""

    root: Any
    """`ParlerTTSForConditionalGeneration`, with any of its modules exchanged."""

    tokenizers: Tokenizers
    description: str

    options: ParlerOptions
    """Differences from the model's settings."""

    def speak(self, text: str, *, streamer: Any = None) -> Audio:
        """Return the audio of the official `generate`, with the noise that torch draws."""
        longest = self.options.max_length
        if longest is not None and longest < 2 * self.codebooks:
            raise ModelError(
                f"max_length is {longest}; {self.codebooks} codebooks need at least "
                f"{2 * self.codebooks}"
            )
        inputs = self.inputs(text, self.longest)
        # Settings may exclude each other, exchanged modules may have other shapes, …
        with model_errors(f"the model cannot speak {text[:40]!r}"), quiet():
            sound = self.root.generate(**inputs, **self.options.given(), streamer=streamer)
        samples = sound.detach().float().cpu().numpy().reshape(-1)
        return Audio(samples=samples, sample_rate=int(self.root.config.sampling_rate))

    @property
    def codebooks(self) -> int:
        """Tokens per step."""
        return int(self.root.decoder.num_codebooks)

    @property
    def longest(self) -> int:
        """The most steps that speech can have, the first included."""
        settings = self.root.generation_config
        if settings.max_new_tokens is not None:
            return int(settings.max_new_tokens) + 1  # wins over any max_length
        return int(self.options.max_length or settings.max_length)

    def inputs(self, text: str, steps: int) -> dict[str, torch.Tensor]:
        """Return the official object's inputs for a text and this many steps of speech."""
        check_text(text)
        said = self.tokenizers.text(text, return_tensors="pt")
        how = self.tokenizers.description(self.description, return_tensors="pt")
        # Text and speech share the decoder's positions unless the text has attention of its own.
        positions = int(self.root.config.decoder.max_position_embeddings)
        room = positions if self.root.prompt_cross_attention else positions - steps
        if said.input_ids.shape[1] > room:
            raise TextError(
                f"{text[:40]!r}… has {said.input_ids.shape[1]} tokens and the model has room for "
                f"{max(room, 0)} beside {steps} steps of speech; give a shorter text"
            )
        inputs = {
            "input_ids": how.input_ids,
            "attention_mask": how.attention_mask,
            "prompt_input_ids": said.input_ids,
            "prompt_attention_mask": said.attention_mask,
        }
        return {name: tensor.to(self.root.device) for name, tensor in inputs.items()}

    def tokens(self, text: str) -> Tokens:
        """Return the tokens that `speak` would make audio of."""
        steps = _Steps()
        self.speak(text, streamer=steps)
        raw = torch.stack([ids.reshape(-1) for ids in steps.taken], dim=1)  # [K, S + 1]
        special = self.root.generation_config
        _, forced = self.root.decoder.build_delay_pattern_mask(
            raw[:, :1],
            bos_token_id=special.bos_token_id,
            pad_token_id=special.pad_token_id,
            max_length=self.longest,
        )
        forced = forced[:, : raw.shape[1]]
        ids = torch.where(forced == -1, raw, forced)
        # Every token that is forced, and the one that ends a codebook, is behind the codec's own.
        sounds = ids < int(self.root.config.audio_encoder.codebook_size)
        return Tokens(ids=ids.T.numpy().copy(), chosen=sounds[:, 1:].T.numpy().copy())

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the tokens before it, shape `[S, K, V]`."""
        steps = len(tokens.ids) - 1
        limit = int(self.root.config.decoder.vocab_size)  # its embedding has one row more
        fits = tokens.ids.ndim == 2 and tokens.ids.shape[1] == self.codebooks and steps > 0
        if not fits or tokens.ids.min() < 0 or tokens.ids.max() > limit:
            raise ModelError(
                f"tokens of shape {tokens.ids.shape} are not ones of this model, which has "
                f"{self.codebooks} codebooks and tokens from 0 to {limit}"
            )
        inputs = self.inputs(text, steps)
        read = torch.from_numpy(np.ascontiguousarray(tokens.ids[:-1].T)).to(self.root.device)
        with model_errors(f"the model cannot read {text[:40]!r}"), quiet(), torch.inference_mode():
            scores = self.root(**inputs, decoder_input_ids=read, use_cache=False).logits
        # The text's positions come first where text and speech share the decoder's.
        found: npt.NDArray[np.float32] = scores[:, -steps:].float().cpu().permute(1, 0, 2).numpy()
        return np.ascontiguousarray(found)


class _Steps:
    """Takes down the tokens of each step; a streamer in the official interface."""

    def __init__(self) -> None:
        self.taken: list[torch.Tensor] = []

    def put(self, ids: torch.Tensor) -> None:
        """Take a step's tokens, shape `[K]`; the first is the start, `[K, 1]`."""
        self.taken.append(ids)

    def end(self) -> None:
        """Do nothing: the tokens are complete."""


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
        """Return this model with another description; recordings are not used by this system."""
        if prompt.description is None:
            return self
        if not (description := prompt.description.strip()):
            raise ModelError("the description is empty; say in words how to speak, or leave it out")
        return replace(self, prompt=replace(self.prompt, description=description))

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the tokens."""
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speech()
        with paired_noise(seed):
            return speech.tokens(text)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, K, V]`."""
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
        root: Any = self.root()
        write_settings(root, directory / CONFIG)
        root.generation_config.save_pretrained(directory)
        write_tokenizers(self.loaded.tokenizers(), directory)
        (directory / DESCRIPTION).write_text(f"{self.description}\n", encoding="utf-8")
