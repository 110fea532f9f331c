"""GPT-SoVITS' T2S models (`.ckpt`) and synthesizers (`.pth`), read without running their content.

Both are files of `torch.save`, whose pickles can run any code. Upstream's loaders trust them, and
distinguish some versions by the size of the file; neither is done here. Newer synthesizers are
marked by two bytes in the place of a zip archive's `PK`. All functions raise `ModelError` for a
file that is missing, damaged, or of something else.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from mmap import ACCESS_COPY, mmap
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from tts_compress.errors import ModelError, model_errors
from tts_compress.models.files import path_classes, read_pickled


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Facts of one of upstream's systems; files are named below its folder of pretrained ones."""

    vits: str  # the published synthesizer
    t2s: str = "s1v3.ckpt"  # the published T2S model
    digest: str  # MD5 of the first 8192 bytes of the published synthesizer
    header: bytes | None = b"PK"  # a trained synthesizer's; None where upstream reads no such file
    symbols: int = 732  # phonemes and punctuation that texts are made of
    speaker: str | None = None  # speaker verification model, where the synthesizer uses one
    vocoder: str | None = None  # its folder or file, where the synthesizer outputs spectrograms
    vocoder_configs: Mapping[str, int] | None = None  # in `TTS.vocoder_configs`; `sr` is in Hz


_SYMBOLS = "enc_p.text_embedding.weight"
_DECODER = "dec.conv_pre.weight"
_SPEAKER = "sv/pretrained_eres2netv2w24s4ep4.ckpt"

VERSIONS: dict[str, Version] = {
    "v1": Version(
        t2s="s1bert25hz-2kh-longer-epoch=68e-step=50232.ckpt",
        vits="s2G488k.pth",
        digest="dc3c97e17592963677a4a1681f30c653",
        symbols=322,
    ),
    "v2": Version(
        t2s="gsv-v2final-pretrained/s1bert25hz-5kh-longer-epoch=12-step=369668.ckpt",
        vits="gsv-v2final-pretrained/s2G2333k.pth",
        digest="6642b37f3dbb1f76882b69937c95a5f3",
    ),
    "v2Pro": Version(
        vits="v2Pro/s2Gv2Pro.pth",
        digest="c7e9fce2223f3db685cdfa1e6368728a",
        header=b"05",
        speaker=_SPEAKER,
    ),
    "v2ProPlus": Version(
        vits="v2Pro/s2Gv2ProPlus.pth",
        digest="66b313e39455b57ab1b0bc0b239c9d0a",
        header=b"06",
        speaker=_SPEAKER,
    ),
    "v3": Version(
        vits="s2Gv3.pth",
        digest="43797be674a37c1c83ee81081941ed0f",
        header=b"02",
        vocoder="models--nvidia--bigvgan_v2_24khz_100band_256x",
        vocoder_configs={"sr": 24_000, "T_ref": 468, "T_chunk": 934, "upsample_rate": 256},
    ),
    "v4": Version(
        vits="gsv-v4-pretrained/s2Gv4.pth",
        digest="4f26b9476d0c5033e04162c486074374",
        header=None,
        vocoder="gsv-v4-pretrained/vocoder.pth",
        vocoder_configs={"sr": 48_000, "T_ref": 500, "T_chunk": 1000, "upsample_rate": 480},
    ),
}


_ZIP = b"PK"

_MARKS = {
    _ZIP: (None, False),
    b"00": ("v1", False),
    b"01": ("v2", False),
    b"02": ("v3", False),
    b"03": ("v3", True),
    b"04": ("v4", True),
    b"05": ("v2Pro", False),
    b"06": ("v2ProPlus", False),
}
"""Version of a synthesizer, and True if it holds LoRA weights alone, by its first two bytes."""

_DEPTH = 16
_ITEMS = 100_000
"""More than any model's settings and weights have; a pickle can hold a dictionary that contains
itself, or the same one a billion times."""

T2S_SYMBOLS = "model.ar_text_embedding.word_embeddings.weight"
"""A T2S model's tensor with a row for each phoneme and punctuation mark."""

_POSTERIOR = "enc_q."  # prefix of what only training needs; upstream does not save it


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A T2S model, a synthesizer, or LoRA weights of a synthesizer."""

    tensors: dict[str, Tensor]  # by upstream's names, as stored
    config: dict[str, Any]  # settings: sections `data`, `model`, `train`, …
    version: str = ""  # the synthesizer's, one of `VERSIONS`
    lora_rank: int | None = None  # for a file that holds changes to a pretrained v3 or v4 alone


def read_t2s(path: Path) -> Checkpoint:
    """Read a T2S model."""
    checkpoint = _read(path, ("model", "data"))
    if T2S_SYMBOLS not in checkpoint.tensors or checkpoint.tensors[T2S_SYMBOLS].ndim != 2:
        raise ModelError(
            f"'{path}' holds no weights of a T2S model, such as '{T2S_SYMBOLS}'; "
            "give the file that training saved to GPT_weights"
        )
    return checkpoint


def read_sovits(path: Path) -> Checkpoint:
    """Read a synthesizer, or its LoRA weights."""
    marked, is_lora = read_mark(path)
    checkpoint = _read(path, ("model", "data", "train"))
    rank: Any = checkpoint.lora_rank
    is_rank = isinstance(rank, int) and not isinstance(rank, bool) and rank > 0
    if is_lora != (rank is not None) or (is_lora and not is_rank):
        raise ModelError(
            f"'{path}' begins with {_first_bytes(path)[:2]!r} and states the LoRA rank {rank!r}; "
            "those of v3 begin with b'03', those of v4 with b'04', and state a number"
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    version = sovits_version(path, marked, checkpoint.config["model"].get("version"), shapes)
    return replace(checkpoint, version=version)


def is_t2s(path: Path) -> bool:
    """Return True if a file is a T2S model, rather than a synthesizer."""
    if _first_bytes(path)[:2] != _ZIP:
        return False
    weights = read_torch_file(path).get("weight")
    return isinstance(weights, dict) and T2S_SYMBOLS in weights


def read_mark(path: Path) -> tuple[str | None, bool]:
    """Return the version that a synthesizer's first bytes state, and True if it is LoRA weights."""
    head = _first_bytes(path)
    if (header := head[:2]) not in _MARKS:
        accepted = ", ".join(repr(mark.decode()) for mark in _MARKS)
        raise ModelError(f"'{path}' begins with {header!r}; a SoVITS model with one of {accepted}")
    digest = hashlib.md5(head, usedforsecurity=False).hexdigest()
    published = next((name for name, v in VERSIONS.items() if v.digest == digest), None)
    return (published, False) if published else _MARKS[header]


def sovits_version(
    where: Path, marked: str | None, stated: object, shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """Return the version that a synthesizer's tensors are of, by their names and shapes.

    Where several have such tensors, the version that its first bytes mark it as counts, then the
    one that its settings state. A mark of another version is refused.
    """
    symbols, channels = shapes.get(_SYMBOLS, ())[:1], shapes.get(_DECODER, ())[:1]
    if any(name.startswith("cfm.") for name in shapes):
        possible = ["v3", "v4"]  # the same networks at other rates; v3 if nothing decides
    elif not symbols or not channels:
        raise ModelError(
            f"'{where}' holds no weights of a SoVITS model, such as '{_SYMBOLS}' and "
            f"'{_DECODER}'; give the file that training saved to SoVITS_weights"
        )
    elif "sv_emb.weight" in shapes:  # v2Pro's decoder begins with 512 channels, v2ProPlus' with 768
        possible = ["v2ProPlus", "v2Pro"] if channels[0] >= 768 else ["v2Pro", "v2ProPlus"]
    else:
        possible = [name for name in ("v1", "v2") if VERSIONS[name].symbols == symbols[0]]
    if not possible:
        raise ModelError(
            f"'{where}' is a SoVITS model of {symbols[0]} symbols; those of v1 have "
            f"{VERSIONS['v1'].symbols} and all newer ones {VERSIONS['v2'].symbols}"
        )
    version = next((str(name) for name in (marked, stated) if name in possible), possible[0])
    # Upstream itself corrects v1 and v2 by the number of symbols.
    if marked not in {None, version} and {marked, version} != {"v1", "v2"}:
        raise ModelError(
            f"'{where}' is marked as {marked}, and its tensors are of {version}; fetch it again"
        )
    return version


def read_torch_file(path: Path) -> dict[str, Any]:
    """Read the sections of a file, as tensors and plain data; nothing in it is executed.

    Tensors stay on the disk where the file allows it; it must not change meanwhile.
    """
    header = _first_bytes(path)[:2]
    unsafe = model_errors(f"'{path}' is no checkpoint that is safe to read")
    classes = [(_Attributes, "utils.HParams"), *path_classes()]
    with unsafe, torch.serialization.safe_globals(classes):
        if header in _MARKS and header != _ZIP:
            with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_COPY) as copy:
                copy[: len(_ZIP)] = _ZIP
                content = torch.load(copy, map_location="cpu", weights_only=True)  # type: ignore[arg-type]
        else:
            content = read_pickled(path, mmap=header == _ZIP)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}, not sections by name")
        counter = count()
        return {str(name): _plain(value, str(name), counter) for name, value in content.items()}


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: dict[str, Any],
    *,
    header: bytes = _ZIP,
    info: str = "converted by tts-compress",
) -> None:
    """Write a T2S model or a synthesizer as upstream's training does, in FP16."""
    kept = {name: t for name, t in tensors.items() if not name.startswith(_POSTERIOR)}
    # `torch.save` writes all of what a view is of; the copy is of its own size.
    weight = {name: tensor.to("cpu", torch.float16, copy=True) for name, tensor in kept.items()}
    if large := [name for name, tensor in weight.items() if not tensor.isfinite().all()]:
        raise ModelError(f"weight '{large[0]}' is too large for FP16, which upstream's files are")
    with path.open("wb") as file:  # by its handle, for a path's name becomes part of the content
        torch.save({"weight": weight, "config": config, "info": info}, file)
        file.seek(0)
        file.write(header)


class _Attributes:
    """Stands for `utils.HParams`, the class that upstream's settings are pickled as."""


def _first_bytes(path: Path) -> bytes:
    """Return the bytes that published files are identified by; the first two mark a version."""
    try:
        with path.open("rb") as file:
            head = file.read(8192)
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror or error}") from error
    if len(head) < len(_ZIP):
        raise ModelError(f"'{path}' is empty or cut off; fetch it again")
    return head


def _plain(value: Any, name: str, counter: Iterator[int], depth: int = 0) -> Any:
    """Return settings and tensors as dictionaries, lists, strings and numbers."""
    if depth > _DEPTH or next(counter) > _ITEMS:
        raise ValueError(f"section {name!r} holds more than any settings or weights do")
    if isinstance(value, _Attributes):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): _plain(item, name, counter, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name, counter, depth + 1) for item in value]
    if isinstance(value, PurePath):
        return value.as_posix()
    if value is None or isinstance(value, str | int | float | torch.Tensor):
        return value
    raise TypeError(f"section {name!r} holds a {type(value).__name__}")


def _read(path: Path, sections: tuple[str, ...]) -> Checkpoint:
    """Return tensors and settings, which have these sections; values are not checked."""
    content = read_torch_file(path)
    weights, config = content.get("weight"), content.get("config")
    if not isinstance(weights, dict) or not weights:
        raise ModelError(
            f"'{path}' has no section 'weight' with tensors; it has "
            f"{', '.join(content) or 'none'}; give the file that training saved to GPT_weights or "
            "SoVITS_weights, not one it goes on from"
        )
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            raise ModelError(f"'{path}': weight '{name}' is no tensor; fetch the file again")
    if not isinstance(config, dict):
        raise ModelError(f"'{path}' has no section 'config' with settings; fetch it again")
    for section in sections:
        if not isinstance(config.get(section), dict):
            raise ModelError(f"'{path}': its settings have no section '{section}'")
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:  # tensors, which are accepted among the weights
        raise ModelError(f"'{path}': its settings are no plain data: {error}") from error
    tensors = {name: tensor.detach() for name, tensor in weights.items()}
    return Checkpoint(tensors=tensors, config=config, lora_rank=content.get("lora_rank"))
