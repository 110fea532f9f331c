"""GPT-SoVITS' own two files: the T2S model's `.ckpt` and the synthesizer's `.pth`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.torch_file import (
    ZIP,
    read_header,
    read_torch_file,
    write_torch_file,
)
from tts_compress.models.gpt_sovits.versions import HEADERS, T2S_SYMBOLS, read_mark, sovits_version
from tts_compress.models.weights import check_finite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

__all__ = [
    "SovitsWeights",
    "T2SWeights",
    "is_t2s",
    "peek_version",
    "read_sovits",
    "read_t2s",
    "write_sovits",
    "write_t2s",
]

_TRAINING_ONLY = "enc_q."
"""Prefix of the tensors that nothing but training needs; upstream leaves them out of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class T2SWeights:
    """A T2S model, which turns phonemes into semantic tokens."""

    tensors: dict[str, torch.Tensor]
    """By the names of upstream's `Text2SemanticLightningModule`; FP16 where it was fine-tuned."""

    config: dict[str, Any]
    """Its settings: sections `data`, `model`, `inference`, …"""

    info: str = ""
    """How far it was trained."""

    @property
    def symbols(self) -> int:
        """How many phonemes and punctuation marks it knows."""
        return int(self.tensors[T2S_SYMBOLS].shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SovitsWeights:
    """A synthesizer, which turns phonemes and semantic tokens into sound or a spectrogram."""

    tensors: dict[str, torch.Tensor]
    """By the names of upstream's `SynthesizerTrn` or `SynthesizerTrnV3`, as stored."""

    config: dict[str, Any]
    """Its settings: sections `train`, `data`, `model`, …"""

    version: str
    """`v1`, `v2`, `v2Pro`, `v2ProPlus`, `v3` or `v4`."""

    info: str = ""
    """How far it was trained."""

    header: bytes = ZIP
    """The first two bytes of its file."""

    lora_rank: int | None = None
    """Rank of the changes to a pretrained v3 or v4, where the file holds no more than those."""


def read_t2s(path: Path, *, mapped: bool = False) -> T2SWeights:
    """Read a T2S model.

    Args:
        path: A `.ckpt` as training saves it to `GPT_weights`, or as it is published.
        mapped: Leave the tensors on the disk and do not look at their values.

    Raises:
        ModelError: There is no such file, or it is damaged or of something else.
        MissingExtraError: torch is not installed.
    """
    where = str(path)
    content = read_torch_file(path, mapped=mapped).content
    tensors, config = _tensors(where, content, check=not mapped), _config(where, content, ("data",))
    if T2S_SYMBOLS not in tensors or tensors[T2S_SYMBOLS].ndim != 2:
        raise ModelError(
            f"'{where}' holds no weights of a T2S model, such as '{T2S_SYMBOLS}'; "
            "give the file that training saved to GPT_weights"
        )
    return T2SWeights(tensors=tensors, config=config, info=str(content.get("info", "")))


def read_sovits(path: Path, *, mapped: bool = False) -> SovitsWeights:
    """Read a synthesizer, or the changes to one.

    Args:
        path: A `.pth` as training saves it to `SoVITS_weights`, or as it is published.
        mapped: Leave the tensors on the disk and do not look at their values.

    Raises:
        ModelError: There is no such file, or it is damaged or of something else.
        MissingExtraError: torch is not installed.
    """
    where, mark = str(path), read_mark(path)
    file = read_torch_file(path, mapped=mapped)
    tensors = _tensors(where, file.content, check=not mapped)
    config = _config(where, file.content, ("data", "train"))
    rank = file.content.get("lora_rank")
    if mark.is_lora != (rank is not None) or (mark.is_lora and not _is_rank(rank)):
        raise ModelError(
            f"'{where}' begins with {file.header!r} and states the LoRA rank {rank!r}; "
            "those of v3 begin with b'03', those of v4 with b'04', and state a number"
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return SovitsWeights(
        tensors=tensors,
        config=config,
        version=sovits_version(where, mark, config["model"], shapes),
        info=str(file.content.get("info", "")),
        header=file.header,
        lora_rank=rank,
    )


def is_t2s(path: Path) -> bool:
    """Whether a file is a T2S model, rather than a synthesizer.

    Raises:
        ModelError: There is no such file, or it is damaged.
        MissingExtraError: torch is not installed.
    """
    if read_header(path) != ZIP:
        return False
    weights = read_torch_file(path, mapped=True).content.get("weight")
    return isinstance(weights, dict) and T2S_SYMBOLS in weights


def peek_version(path: Path) -> str:
    """Return a synthesizer's version, from its first bytes if they tell.

    Raises:
        ModelError: There is no such file, or it is damaged or of something else.
        MissingExtraError: torch is not installed.
    """
    version = read_mark(path).version
    # Upstream marks no file as v1 or v2, and takes the checksum of its first v1 for a v2's.
    return version if version not in {None, "v1", "v2"} else read_sovits(path, mapped=True).version


def write_t2s(weights: T2SWeights, path: Path) -> None:
    """Write a T2S model as upstream's training does, in FP16, atomically.

    Raises:
        ModelError: A value is too large for FP16.
        ArtifactError: The file cannot be written.
    """
    content = {"weight": _halved(weights.tensors), "config": weights.config, "info": weights.info}
    write_torch_file(path, content, header=ZIP)


def write_sovits(weights: SovitsWeights, path: Path) -> None:
    """Write a synthesizer as upstream's training does, in FP16, atomically.

    Its settings are plain dictionaries, which upstream reads as well as its own class.

    Raises:
        ModelError: A value is too large for FP16, or upstream reads no such files: changes to
            weights without them, or a whole v4.
        ArtifactError: The file cannot be written.
    """
    if weights.lora_rank is not None or weights.version not in HEADERS:
        kind = "LoRA weights" if weights.lora_rank is not None else f"whole {weights.version}"
        raise ModelError(
            f"cannot write '{path}': upstream has no format for {kind} of other origin than its "
            f"training; accepted are whole models of {', '.join(HEADERS)}"
        )
    content = {"weight": _halved(weights.tensors), "config": weights.config, "info": weights.info}
    write_torch_file(path, content, header=HEADERS[weights.version])


def _tensors(where: str, content: Mapping[str, Any], *, check: bool) -> dict[str, torch.Tensor]:
    """Return the section of the weights.

    Args:
        where: The file, for messages.
        content: Its sections.
        check: Whether to look at their values, too.
    """
    import torch

    found = content.get("weight")
    if not isinstance(found, dict) or not found:
        raise ModelError(
            f"'{where}' has no section 'weight' with tensors; it has "
            f"{', '.join(content) or 'none'}; give the file that training saved to GPT_weights or "
            "SoVITS_weights, not one it goes on from"
        )
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            raise ModelError(f"'{where}': weight '{name}' is no tensor; fetch the file again")
    if check:
        used = ((name, found[name]) for name in found if not name.startswith(_TRAINING_ONLY))
        check_finite(used, where)
    return {name: tensor.detach() for name, tensor in found.items()}


def _config(where: str, content: Mapping[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    config = content.get("config")
    if not isinstance(config, dict):
        raise ModelError(f"'{where}' has no section 'config' with settings; fetch it again")
    for section in ("model", *sections):
        if not isinstance(config.get(section), dict):
            raise ModelError(f"'{where}': its settings say nothing of '{section}'")
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:  # tensors, which are welcome among the weights
        raise ModelError(f"'{where}': its settings are no plain data: {error}") from error
    return config


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _halved(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what upstream keeps of a model's tensors, as it keeps them."""
    kept = {name: t for name, t in tensors.items() if not name.startswith(_TRAINING_ONLY)}
    halved = {name: tensor.half().clone() for name, tensor in kept.items()}
    for name, tensor in halved.items():
        if not tensor.isfinite().all():
            raise ModelError(f"weight '{name}' is too large for FP16, which upstream's files are")
    return halved
