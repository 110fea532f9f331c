"""FastSpeech2 with Conformers, and HiFi-GAN: one pass, no noise (Ren et al., 2021)."""

import torch
from torch import Tensor

from tts_compress.models.distillation import Objective
from tts_compress.models.transformers.system import System, Voice, bounded
from tts_compress.models.transformers.tokens import tokenize


def speak(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, as the official object speaks it."""
    root, config = voice.root, voice.root.model.config
    longest = int(config.max_source_positions)
    inputs = tokenize(voice.tokenizer, text, int(config.vocab_size), longest)
    chosen = {}
    if voice.options.speaker is not None:
        chosen["speaker_ids"] = torch.tensor([[int(voice.options.speaker)]])
    if size := config.speaker_embed_dim:
        chosen["speaker_embedding"] = torch.from_numpy(voice.source.read_speaker(int(size)))
    speed = float(config.speaking_speed)
    with (
        torch.no_grad(),
        bounded(root.model.duration_predictor, lambda found: float(found.sum()) * speed),
    ):
        waveform: Tensor = root(
            inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            return_dict=True,
            **chosen,
        ).waveform
    return waveform.reshape(-1)


SYSTEM = System(
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
    speak=speak,
)
