"""Which of GPT-SoVITS' systems a file is of: its mark, its checksum, its settings, its tensors.

Upstream tells some of them apart by the size of the file, which a compressed one defeats.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.torch_file import ZIP, read_header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "HEADERS",
    "SYMBOLS",
    "T2S_SYMBOLS",
    "VERSIONS",
    "Mark",
    "check_alphabet",
    "is_pro",
    "read_mark",
    "sovits_version",
    "uses_vocoder",
]

VERSIONS = ("v1", "v2", "v2Pro", "v2ProPlus", "v3", "v4")

SYMBOLS = {"v1": 322} | dict.fromkeys(VERSIONS[1:], 732)
"""Phonemes and punctuation that a version's texts are made of."""

HEADERS = {"v1": ZIP, "v2": ZIP, "v2Pro": b"05", "v2ProPlus": b"06", "v3": b"02"}
"""What a version's synthesizer begins with. Upstream knows a whole v4 by its checksum alone."""

T2S_SYMBOLS = "model.ar_text_embedding.word_embeddings.weight"
"""The tensor of a T2S model that has a row for every symbol."""

_SYMBOLS = "enc_p.text_embedding.weight"
_DECODER = "dec.conv_pre.weight"

_PLUS_CHANNELS = 768
"""Of the first layer of v2ProPlus' decoder; v2Pro's has 512."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a file's first bytes say."""

    version: str | None = None
    """None where they say nothing."""

    is_lora: bool = False
    """Whether it holds changes to weights that are in another file."""


_MARKS = {
    ZIP: Mark(),
    b"00": Mark(version="v1"),
    b"01": Mark(version="v2"),
    b"02": Mark(version="v3"),
    b"03": Mark(version="v3", is_lora=True),
    b"04": Mark(version="v4", is_lora=True),
    b"05": Mark(version="v2Pro"),
    b"06": Mark(version="v2ProPlus"),
}

_RELEASES = {
    "dc3c97e17592963677a4a1681f30c653": "v1",
    "6642b37f3dbb1f76882b69937c95a5f3": "v2",
    "c7e9fce2223f3db685cdfa1e6368728a": "v2Pro",
    "66b313e39455b57ab1b0bc0b239c9d0a": "v2ProPlus",
    "43797be674a37c1c83ee81081941ed0f": "v3",
    "4f26b9476d0c5033e04162c486074374": "v4",
}
"""The published pretrained synthesizers, by the MD5 of their first 8192 bytes."""


def read_mark(path: Path) -> Mark:
    """Return what a synthesizer's first bytes say.

    Raises:
        ModelError: There is no such file, or none that begins so.
    """
    header = read_header(path)
    if header not in _MARKS:
        known = ", ".join(repr(known.decode()) for known in _MARKS)
        raise ModelError(
            f"'{path}' begins with {header!r}; a SoVITS model begins with one of {known}"
        )
    with path.open("rb") as file:
        digest = hashlib.md5(file.read(8192), usedforsecurity=False).hexdigest()
    return Mark(version=_RELEASES[digest]) if digest in _RELEASES else _MARKS[header]


def sovits_version(
    where: str, mark: Mark, model: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """Return a synthesizer's version.

    Args:
        where: The file, for messages.
        mark: What its first bytes say.
        model: What its settings say of the network.
        shapes: Of its tensors, by name.

    Raises:
        ModelError: The tensors are not those of a synthesizer, or of another than the mark says.
    """
    stated = [mark.version, model.get("version")]
    accepted = _possible(where, shapes)
    found = next((version for version in stated if version in accepted), None) or accepted[0]
    if mark.version is not None and not _agree(mark.version, found):
        raise ModelError(
            f"'{where}' is marked as {mark.version}, and its tensors are of {found}; fetch it again"
        )
    return found


def check_alphabet(where: str, symbols: int, version: str) -> None:
    """Refuse a T2S model that was trained on other phonemes than a synthesizer.

    Upstream runs such a pair, and it speaks gibberish or fails in the middle of a text.

    Args:
        where: The T2S model's file, for the message.
        symbols: Rows of its `T2S_SYMBOLS`.
        version: The synthesizer's.

    Raises:
        ModelError: It was.
    """
    is_first = symbols < SYMBOLS["v2"]  # v1's has 512
    if is_first != (version == "v1") or symbols < SYMBOLS[version]:
        trained = "v1" if is_first else "v2 and newer"
        raise ModelError(
            f"'{where}' is a T2S model of {symbols} symbols, as those of {trained} are, and the "
            f"SoVITS model is {version}, whose texts are made of {SYMBOLS[version]}; "
            "give two of the same version"
        )


def is_pro(version: str) -> bool:
    """Whether a version's synthesizer also hears a speaker verification model."""
    return version in {"v2Pro", "v2ProPlus"}


def uses_vocoder(version: str) -> bool:
    """Whether a version's synthesizer makes spectrograms, which a vocoder of its own turns."""
    return version in {"v3", "v4"}


def _possible(where: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the versions that tensors can be of, first the one to take where nothing tells."""
    if any(name.startswith("cfm.") for name in shapes):
        return ("v3", "v4")  # the same networks, at other rates
    symbols = shapes.get(_SYMBOLS, ())[:1]
    channels = shapes.get(_DECODER, ())[:1]
    if not symbols or not channels:
        raise ModelError(
            f"'{where}' holds no weights of a SoVITS model, such as '{_SYMBOLS}' and "
            f"'{_DECODER}'; give the file that training saved to SoVITS_weights"
        )
    if "sv_emb.weight" in shapes:
        plus = channels[0] >= _PLUS_CHANNELS
        return ("v2ProPlus", "v2Pro") if plus else ("v2Pro", "v2ProPlus")
    known = {SYMBOLS["v1"]: "v1", SYMBOLS["v2"]: "v2"}
    if symbols[0] not in known:
        raise ModelError(
            f"'{where}' is a SoVITS model of {symbols[0]} symbols; those of v1 have "
            f"{SYMBOLS['v1']} and all newer ones {SYMBOLS['v2']}"
        )
    return (known[symbols[0]],)


def _agree(marked: str, found: str) -> bool:
    """Whether a mark fits; upstream itself puts v1 and v2 right by the number of symbols."""
    return marked == found or {marked, found} == {"v1", "v2"}
