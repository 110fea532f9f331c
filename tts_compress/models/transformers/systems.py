"""The kinds of voices, each by its official class."""

from tts_compress.models.transformers.latents import PHONON, POCKET, VIBEVOICE
from tts_compress.models.transformers.spectrograms import FASTSPEECH2, SPEECHT5, VITS
from tts_compress.models.transformers.tokens import BARK, CSM, DIA, HIGGS
from tts_compress.models.transformers.voice import System

SYSTEMS: dict[str, System] = {
    "bark": BARK,
    "fastspeech2_conformer_with_hifigan": FASTSPEECH2,
    "speecht5": SPEECHT5,
    "vibevoice": VIBEVOICE,
    "vits": VITS,
    "csm": CSM,
    "dia": DIA,
    "gradium_phonon_tts": PHONON,
    "higgs_audio_v2": HIGGS,
    "pocket_tts": POCKET,
}
"""Kinds of voices, by the `model_type` in `config.json`; `files.KINDS` lists their names."""
