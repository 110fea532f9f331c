"""Everything about a GPT-SoVITS model but its weights: what its networks are built from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.versions import VERSIONS, is_pro, uses_vocoder
from tts_compress.models.settings_file import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "SETTINGS",
    "GptSovitsSettings",
    "VocoderRates",
    "read_settings",
    "sample_rate_of",
    "v4_vocoder",
    "vocoder_rates",
]

SETTINGS = "settings.json"
"""The file of an artifact that holds them."""

_V4_VOCODER: dict[str, Any] = {
    "initial_channel": 100,
    "resblock": "1",
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "upsample_rates": [10, 6, 2, 2, 2],
    "upsample_initial_channel": 512,
    "upsample_kernel_sizes": [20, 12, 4, 4, 4],
    "gin_channels": 0,
    "is_bias": True,
}
"""v4's vocoder has no settings of its own: upstream states them where it loads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderRates:
    """How upstream runs a vocoder."""

    sr: int
    """Samples per second of what it makes, Hz."""

    T_ref: int
    """The most frames of the reference recording that a chunk begins with."""

    T_chunk: int
    """Frames of a chunk, the reference included."""

    upsample_rate: int
    """Samples per frame."""

    overlapped_len: int = 12
    """Frames that chunks share."""


def vocoder_rates(version: str) -> VocoderRates | None:
    """Return how the vocoder of a version is run; None for the versions without one."""
    return {
        "v3": VocoderRates(sr=24_000, T_ref=468, T_chunk=934, upsample_rate=256),
        "v4": VocoderRates(sr=48_000, T_ref=500, T_chunk=1000, upsample_rate=480),
    }.get(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsSettings:
    """What upstream's classes are built from; every value is plain data.

    Raises:
        ModelError: The version is unknown, or a part has no settings.
    """

    version: str
    """One of `VERSIONS`."""

    t2s: dict[str, Any]
    """Of the language model: the sections `data` and `model` of its checkpoint."""

    sovits: dict[str, Any]
    """Of the synthesizer: the sections `data`, `model` and `train`."""

    bert: dict[str, Any]
    """`config.json` of the text encoder."""

    hubert: dict[str, Any]
    """`config.json` of the speech encoder."""

    vocoder: dict[str, Any] | None = None
    """Of v3's and v4's vocoder."""

    options: dict[str, Any] = field(default_factory=dict)
    """How it is run, where that is not upstream's way; see `GptSovitsOptions`."""

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise ModelError(
                f"there is no GPT-SoVITS {self.version!r}; accepted: {', '.join(VERSIONS)}"
            )
        if uses_vocoder(self.version) and self.vocoder is None:
            raise ModelError(f"nothing is known of the vocoder of this {self.version}")

    @property
    def has_vocoder(self) -> bool:
        """Whether a network of its own turns spectrograms into sound."""
        return uses_vocoder(self.version)

    @property
    def hears_speaker(self) -> bool:
        """Whether the synthesizer takes an embedding of the speaker."""
        return is_pro(self.version)

    @property
    def sample_rate(self) -> int:
        """Samples per second of what is spoken, Hz."""
        return sample_rate_of(self.version, self.sovits)

    def to_json(self) -> str:
        """Return them as stable, readable JSON."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def sample_rate_of(version: str, sovits: Mapping[str, Any]) -> int:
    """Return how many samples per second a version speaks, Hz.

    Args:
        version: One of `VERSIONS`.
        sovits: Settings of the synthesizer, with the section `data`.

    Raises:
        ModelError: They state none.
    """
    rates = vocoder_rates(version)
    rate = sovits["data"].get("sampling_rate") if rates is None else rates.sr
    if not isinstance(rate, int) or rate <= 0:
        raise ModelError(f"the SoVITS model states the sampling rate {rate!r}, not Hz")
    return rate


def read_settings(path: Path) -> GptSovitsSettings:
    """Return the settings of an artifact.

    Raises:
        ModelError: The file cannot be read or is none.
    """
    stated = read_json(path)
    try:
        names = {each.name for each in fields(GptSovitsSettings)}
        if not isinstance(stated, dict) or stated.keys() != names:
            raise ValueError(f"it must have {', '.join(sorted(names))}")
        return GptSovitsSettings(**stated)
    except (ValueError, TypeError) as error:
        raise ModelError(f"cannot read '{path}': {error}") from error


def v4_vocoder() -> dict[str, Any]:
    """Return what v4's vocoder is built from."""
    return dict(_V4_VOCODER)
