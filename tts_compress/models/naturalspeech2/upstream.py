"""Amphion, whose NaturalSpeech2 runs from a clone of its repository."""

from __future__ import annotations

from tts_compress.models.checkout import Upstream

__all__ = ["AMPHION"]

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
    modules=("models", "modules", "text", "utils"),
)
"""The modules are those that speaking imports; its root holds more."""
