"""What an F5-TTS model's YAML files may say; upstream runs whatever class they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.f5.options import F5Options
from tts_compress.models.f5.package import EXTRA, HOP_LENGTH, SAMPLE_RATE
from tts_compress.models.packages import import_package
from tts_compress.models.settings_file import read_yaml

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["F5Config", "check_vocoder_config", "read_config", "write_config"]

_BACKBONES = ("DiT", "MMDiT", "UNetT")

# Upstream's inference computes with these, whatever a configuration says.
_MEL_SPEC = {
    "target_sample_rate": SAMPLE_RATE,
    "n_mel_channels": 100,
    "hop_length": HOP_LENGTH,
    "win_length": 1024,
    "n_fft": 1024,
    "mel_spec_type": "vocos",
}
_VOCODER = {
    "feature_extractor": "vocos.feature_extractors.MelSpectrogramFeatures",
    "backbone": "vocos.models.VocosBackbone",
    "head": "vocos.heads.ISTFTHead",
}
_OPTIONS = "inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Config:
    """What `config.yaml` says about inference."""

    backbone: str
    """Class of the transformer: `DiT`, `MMDiT` or `UNetT`."""

    arch: dict[str, Any]
    """What it is built with."""

    options: F5Options
    """How it is run; the system's defaults unless an artifact says otherwise."""

    raw: dict[str, Any]
    """All that the file says."""


def read_config(path: Path) -> F5Config:
    """Read a `config.yaml` as upstream ships one for each model.

    Raises:
        ModelError: It cannot be read, or describes what upstream's inference cannot run.
    """
    raw = _read_mapping(path)
    model = _section(path, raw, "model")
    backbone = model.get("backbone")
    if backbone not in _BACKBONES:
        raise ModelError(
            f"'{path}': backbone is {backbone!r}; accepted are {', '.join(_BACKBONES)}"
        )
    arch = _section(path, model, "arch")
    for name, value in _section(path, model, "mel_spec").items():
        if value != _MEL_SPEC.get(name, value):
            raise ModelError(
                f"'{path}': mel_spec.{name} is {value!r}; F5-TTS's inference takes "
                f"{_MEL_SPEC[name]!r} only"
            )
    options = F5Options().changed(
        _section(path, raw, _OPTIONS) if _OPTIONS in raw else {}, f"'{path}'"
    )
    return F5Config(backbone=backbone, arch=arch, options=options, raw=raw)


def write_config(path: Path, config: F5Config, options: F5Options) -> None:
    """Write a `config.yaml` with the options that are not the system's defaults."""
    raw = {name: value for name, value in config.raw.items() if name != _OPTIONS}
    stated = options.stated()
    yaml = import_package("yaml", EXTRA)
    text = yaml.safe_dump(raw | ({_OPTIONS: stated} if stated else {}), sort_keys=False)
    path.write_text(text, encoding="utf-8")


def check_vocoder_config(path: Path) -> None:
    """Refuse a vocoder's configuration that names other classes than those F5-TTS speaks with.

    Raises:
        ModelError: It does, or cannot be read.
    """
    raw = _read_mapping(path)
    for part, accepted in _VOCODER.items():
        stated = _section(path, raw, part).get("class_path")
        if stated != accepted:
            raise ModelError(
                f"'{path}': class_path of {part} is {stated!r}; only {accepted!r} is accepted"
            )


def _read_mapping(path: Path) -> dict[str, Any]:
    raw = read_yaml(path, EXTRA)
    if not isinstance(raw, dict):
        raise ModelError(f"'{path}' holds a {type(raw).__name__}; sections by name are needed")
    return raw


def _section(path: Path, raw: dict[str, Any], name: str) -> dict[str, Any]:
    section = raw.get(name)
    if not isinstance(section, dict):
        raise ModelError(f"'{path}' has no section {name!r}; take upstream's file of the model")
    return section
