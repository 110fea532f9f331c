"""Speaking with the official Parler-TTS object: texts to its inputs, its tokens to ours."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tts_compress.audio import Audio
from tts_compress.errors import ModelError, TextError, model_errors
from tts_compress.models.base import Tokens, check_text
from tts_compress.models.parler.files import ParlerOptions
from tts_compress.models.parler.network import Tokenizers, quiet


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
        return {
            "input_ids": how.input_ids,
            "attention_mask": how.attention_mask,
            "prompt_input_ids": said.input_ids,
            "prompt_attention_mask": said.attention_mask,
        }

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
        read = torch.from_numpy(np.ascontiguousarray(tokens.ids[:-1].T))
        with model_errors(f"the model cannot read {text[:40]!r}"), quiet(), torch.inference_mode():
            scores = self.root(**inputs, decoder_input_ids=read, use_cache=False).logits
        # The text's positions come first where text and speech share the decoder's.
        found: npt.NDArray[np.float32] = scores[:, -steps:].float().permute(1, 0, 2).numpy()
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
