"""Kinds of voices that make spectrograms or samples at once: VITS, SpeechT5 and FastSpeech2."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError, TextError
from tts_compress.models.base import Objective
from tts_compress.models.transformers.voice import System, Voice, tokenize

_MAX_FRAMES = 60_000  # a quarter of an hour; the alignment takes frames times tokens


@contextmanager
def bounded(predictor: nn.Module, frames: Callable[[Tensor], float]) -> Iterator[None]:
    """Refuse durations that no memory can hold, such as those of damaged weights, in the block."""

    def check(_module: Any, _inputs: Any, output: Tensor) -> None:
        total = frames(output)
        if not total <= _MAX_FRAMES:  # NaN is not, either
            raise ModelError(
                f"the durations add up to {total:g} frames, more than {_MAX_FRAMES}; give a "
                "shorter text, or another model: its weights may be damaged"
            )

    with predictor.register_forward_hook(check):
        yield


_MAX_VITS_TOKENS = 4096  # attention takes memory by their square: 64 MiB for each head


def _speak_vits(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, as the official object speaks it."""
    inputs = tokenize(voice, text, int(voice.root.config.vocab_size), _MAX_VITS_TOKENS)
    # Between any two tokens, and around them, stands the blank.
    if getattr(voice.tokenizer, "add_blank", False) and inputs["input_ids"].shape[1] < 3:
        raise TextError(f"the voice knows no symbol of {text[:40]!r}; give a text of its language")
    chosen = {} if voice.options.speaker is None else {"speaker_id": int(voice.options.speaker)}
    predictor = voice.root.duration_predictor
    with torch.no_grad(), bounded(predictor, lambda durations: _frames(voice.root, durations)):
        waveform: Tensor = voice.root(**inputs, **chosen).waveform
    return waveform[0]


def _frames(root: Any, log_durations: Tensor) -> float:
    return float((log_durations.exp() / float(root.speaking_rate)).ceil().sum())


VITS = System(
    class_name="VitsModel",
    roles={
        "embed_speaker": "speakers",
        "text_encoder": "text encoder",
        "duration_predictor": "duration predictor",
        "flow": "flow",
        "decoder": "decoder",
        "posterior_encoder": "posterior encoder (only for training)",
    },
    objectives=(
        Objective(module="flow", loss="mse"),
        Objective(module="decoder", loss="waveform"),
    ),
    sample_rate=lambda source: source.sample_rate(None, 16_000),
    speak=_speak_vits,
)
"""VITS and MMS: the whole voice is one network, whose durations are drawn (Kim et al., 2021)."""


def _speak_speecht5(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official `generate_speech`."""
    root, config = voice.root, voice.root.config
    inputs = tokenize(voice, text, int(config.vocab_size), int(config.max_text_positions))
    speaker = voice.speaker(int(config.speaker_embedding_dim))
    waveform: Tensor = root.generate_speech(
        inputs["input_ids"],
        speaker_embeddings=speaker,
        attention_mask=inputs.get("attention_mask"),
        vocoder=root.vocoder,
    )
    return waveform.reshape(-1)


SPEECHT5 = System(
    class_name="SpeechT5ForTextToSpeech",
    vocoder="SpeechT5HifiGan",
    roles={
        "speecht5.encoder": "text encoder",
        "speecht5.decoder": "spectrogram decoder",
        "speech_decoder_postnet": "spectrogram, its end and its refinement",
        "vocoder": "vocoder",
    },
    objectives=(Objective(module="vocoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("", 16_000),
    speak=_speak_speecht5,
)
"""SpeechT5: spectrograms step by step with dropout left on, then HiFi-GAN (Ao et al., 2022)."""


def _speak_fastspeech2(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, as the official object speaks it."""
    root, config = voice.root, voice.root.model.config
    longest = int(config.max_source_positions)
    inputs = tokenize(voice, text, int(config.vocab_size), longest)
    chosen = {}
    if voice.options.speaker is not None:
        ids = torch.tensor([[int(voice.options.speaker)]])
        chosen["speaker_ids"] = ids.to(root.device)
    if size := config.speaker_embed_dim:
        chosen["speaker_embedding"] = voice.speaker(int(size))
    speed = float(config.speaking_speed)
    with (
        torch.no_grad(),
        bounded(root.model.duration_predictor, lambda durations: float(durations.sum()) * speed),
    ):
        waveform: Tensor = root(
            inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            return_dict=True,
            **chosen,
        ).waveform
    return waveform.reshape(-1)


FASTSPEECH2 = System(
    class_name="FastSpeech2ConformerWithHifiGan",
    roles={
        "model.speaker_id_embedding": "speakers",
        "model.language_id_embedding": "languages",
        "model.encoder": "text encoder",
        "model.projection": "projection of the speaker",
        "model.duration_predictor": "duration predictor",
        "model.pitch_predictor": "pitch predictor",
        "model.energy_predictor": "energy predictor",
        "model.pitch_embed": "pitch embedding",
        "model.energy_embed": "energy embedding",
        "model.decoder": "spectrogram decoder",
        "model.speech_decoder_postnet": "spectrogram and its refinement",
        "vocoder": "vocoder",
    },
    objectives=(Objective(module="vocoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("vocoder_config", 22_050),
    speak=_speak_fastspeech2,
)
"""FastSpeech2 with Conformers, and HiFi-GAN: one pass, no noise (Ren et al., 2021)."""
