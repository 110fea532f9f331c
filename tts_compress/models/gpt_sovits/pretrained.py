"""The files that upstream publishes, which lie in the clone: where each version looks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import ModelError
from tts_compress.models.checkout import find_checkout
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS
from tts_compress.models.gpt_sovits.versions import is_pro, uses_vocoder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BERT",
    "HUBERT",
    "pretrained",
    "pretrained_names",
    "pretrained_sovits",
    "pretrained_speaker",
    "pretrained_vocoder",
]

BERT = "chinese-roberta-wwm-ext-large"
HUBERT = "chinese-hubert-base"

_FOLDER = "GPT_SoVITS/pretrained_models"
_SPEAKER = "sv/pretrained_eres2netv2w24s4ep4.ckpt"
_VOCODERS = {
    "v3": "models--nvidia--bigvgan_v2_24khz_100band_256x",
    "v4": "gsv-v4-pretrained/vocoder.pth",
}


# Of the T2S model and of the synthesizer.
_NAMES = {
    "v1": ("s1bert25hz-2kh-longer-epoch=68e-step=50232.ckpt", "s2G488k.pth"),
    "v2": (
        "gsv-v2final-pretrained/s1bert25hz-5kh-longer-epoch=12-step=369668.ckpt",
        "gsv-v2final-pretrained/s2G2333k.pth",
    ),
    "v2Pro": ("s1v3.ckpt", "v2Pro/s2Gv2Pro.pth"),
    "v2ProPlus": ("s1v3.ckpt", "v2Pro/s2Gv2ProPlus.pth"),
    "v3": ("s1v3.ckpt", "s2Gv3.pth"),
    "v4": ("s1v3.ckpt", "gsv-v4-pretrained/s2Gv4.pth"),
}


def pretrained(name: str) -> Path:
    """Return a published file or folder.

    Args:
        name: Relative to the clone's folder of pretrained models.

    Raises:
        ModelError: No clone is named, or it does not have it.
    """
    path = find_checkout(GPT_SOVITS).root / _FOLDER / name
    if not path.exists():
        raise ModelError(
            f"there is no '{path}'; upstream publishes it at "
            f"https://huggingface.co/lj1995/GPT-SoVITS: fetch '{name}' into {_FOLDER} of the clone"
        )
    return path


def pretrained_names(version: str) -> tuple[str, str]:
    """Return a version's T2S model and synthesizer, relative to the folder of such files."""
    return _NAMES[version]


def pretrained_sovits(version: str) -> Path:
    """Return a version's synthesizer.

    Raises:
        ModelError: No clone is named, or it does not have it.
    """
    return pretrained(_NAMES[version][1])


def pretrained_vocoder(version: str) -> Path | None:
    """Return v3's folder or v4's file; None for the versions that need none.

    Raises:
        ModelError: No clone is named, or it does not have it.
    """
    return pretrained(_VOCODERS[version]) if uses_vocoder(version) else None


def pretrained_speaker(version: str) -> Path | None:
    """Return the speaker verification model; None for the versions that hear no speaker.

    Raises:
        ModelError: No clone is named, or it does not have it.
    """
    return pretrained(_SPEAKER) if is_pro(version) else None
