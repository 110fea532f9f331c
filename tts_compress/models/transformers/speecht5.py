"""SpeechT5: spectrograms step by step with dropout left on, then HiFi-GAN (Ao et al., 2022)."""

import torch
from torch import Tensor

from tts_compress.models.distillation import Objective
from tts_compress.models.transformers.system import System, Voice
from tts_compress.models.transformers.tokens import tokenize


def speak(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official `generate_speech`."""
    root, config = voice.root, voice.root.config
    inputs = tokenize(voice.tokenizer, text, int(config.vocab_size), int(config.max_text_positions))
    speaker = torch.from_numpy(voice.source.read_speaker(int(config.speaker_embedding_dim)))
    waveform: Tensor = root.generate_speech(
        inputs["input_ids"],
        speaker_embeddings=speaker,
        attention_mask=inputs.get("attention_mask"),
        vocoder=root.vocoder,
    )
    return waveform.reshape(-1)


SYSTEM = System(
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
    speak=speak,
)
