"""Amphion's NaturalSpeech2: latent diffusion by a WaveNet, and EnCodec, run from a clone."""

from tts_compress.families import Family, Upstream

AMPHION = Upstream(
    family="naturalspeech2",
    name="Amphion",
    repository="https://github.com/open-mmlab/Amphion",
    commit="d3de90f02e7f1c7dbc24b04d52fe1b8ef438effe",
    variable="TTS_COMPRESS_AMPHION",
    extra="naturalspeech2",
    markers=(
        "models/tts/naturalspeech2/ns2_inference.py",
        "modules/naturalpseech2/transformers.py",  # spelt so
        "config/ns2.json",
    ),
    paths=(".",),
    # Those that speaking imports; its root holds more.
    modules=("models", "modules", "text", "utils"),
)

FAMILY = Family(
    name=AMPHION.family,
    opener="tts_compress.models.naturalspeech2.model:NaturalSpeech2Model.open",
    location="a checkpoint's directory",
    extra=AMPHION.extra,
    upstream=AMPHION,
)
