"""GPT-SoVITS' T2S models (`.ckpt`) and synthesizers (`.pth`), read without running their content.

Both are files of `torch.save`, whose pickles can run any code. Upstream's loaders trust them, and
distinguish some versions by the size of the file; neither is done here. Newer synthesizers are
marked by two bytes in the place of a zip archive's `PK`. All functions raise `ModelError` for a
file that is missing, damaged, or of something else.
"""

import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any

from torch import Tensor

from tts_compress.errors import ModelError, first_line
from tts_compress.models.files import check_finite
from tts_compress.models.gpt_sovits.upstream import VERSIONS, sovits_version

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

_WRAPPED = "cfm.base_model.model."
_DOWN, _UP = ".lora_A.default.weight", ".lora_B.default.weight"
"""Parts of the names that peft, which training wraps the estimator in, gives to weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A T2S model, a synthesizer, or LoRA weights of a synthesizer."""

    tensors: dict[str, Tensor]  # by upstream's names, as stored
    config: dict[str, Any]  # settings: sections `data`, `model`, `train`, …
    version: str = ""  # the synthesizer's, one of `VERSIONS`
    lora_rank: int | None = None  # for a file that holds changes to a pretrained v3 or v4 alone


def read_t2s(path: Path, *, mapped: bool = False) -> Checkpoint:
    """Read a T2S model; `mapped` leaves its tensors on the disk, their values unchecked."""
    content = read_torch_file(path, mapped=mapped)
    tensors = _tensors(path, content, check=not mapped)
    config = _config(path, content, ("model", "data"))
    if T2S_SYMBOLS not in tensors or tensors[T2S_SYMBOLS].ndim != 2:
        raise ModelError(
            f"'{path}' holds no weights of a T2S model, such as '{T2S_SYMBOLS}'; "
            "give the file that training saved to GPT_weights"
        )
    return Checkpoint(tensors=tensors, config=config)


def read_sovits(path: Path, *, mapped: bool = False) -> Checkpoint:
    """Read a synthesizer, or its LoRA weights; `mapped` is as for `read_t2s`."""
    marked, is_lora = read_mark(path)
    content = read_torch_file(path, mapped=mapped)
    tensors = _tensors(path, content, check=not mapped)
    config = _config(path, content, ("model", "data", "train"))
    rank = content.get("lora_rank")
    is_rank = isinstance(rank, int) and not isinstance(rank, bool) and rank > 0
    if is_lora != (rank is not None) or (is_lora and not is_rank):
        raise ModelError(
            f"'{path}' begins with {_first_bytes(path)[:2]!r} and states the LoRA rank {rank!r}; "
            "those of v3 begin with b'03', those of v4 with b'04', and state a number"
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    version = sovits_version(path, marked, config["model"].get("version"), shapes)
    return Checkpoint(tensors=tensors, config=config, version=version, lora_rank=rank)


def is_t2s(path: Path) -> bool:
    """Return True if a file is a T2S model, rather than a synthesizer."""
    if _first_bytes(path)[:2] != _ZIP:
        return False
    weights = read_torch_file(path, mapped=True).get("weight")
    return isinstance(weights, dict) and T2S_SYMBOLS in weights


def read_mark(path: Path) -> tuple[str | None, bool]:
    """Return the version that a synthesizer's first bytes state, and True if it is LoRA weights."""
    head = _first_bytes(path)
    if (header := head[:2]) not in _MARKS:
        known = ", ".join(repr(known.decode()) for known in _MARKS)
        raise ModelError(f"'{path}' begins with {header!r}; a SoVITS model with one of {known}")
    digest = hashlib.md5(head, usedforsecurity=False).hexdigest()
    published = next((name for name, known in VERSIONS.items() if known.digest == digest), None)
    return (published, False) if published else _MARKS[header]


def merge_lora(changes: Checkpoint, base: Checkpoint) -> Checkpoint:
    """Return a whole synthesizer: W + B A where there are changes A and B to a weight W, in FP32.

    Upstream trains with `lora_alpha` equal to the rank, so nothing is scaled. Weights that
    training did not freeze replace the base's. peft, which upstream merges with, skips
    tensors that do not fit.
    """
    import torch

    tensors, rank = dict(base.tensors), changes.lora_rank
    for name, tensor in changes.tensors.items():
        layer = name.removesuffix(_DOWN).removesuffix(_UP)
        new, target = tensor, name if layer == name else f"{layer}.weight"
        if layer != name:
            down, up = (changes.tensors.get(layer + e, torch.empty(0)) for e in (_DOWN, _UP))
            other = _UP if name.endswith(_DOWN) else _DOWN
            if (down.ndim, *down.shape[:1], *up.shape[1:]) != (2, rank, rank):
                raise ModelError(
                    f"the LoRA weight '{name}' has no counterpart '{other}' of rank {rank}; fetch "
                    "the file again"
                )
            if name.endswith(_UP):
                continue  # added with its counterpart
            new = up.float() @ down.float()
        if target.startswith(_WRAPPED):
            target = f"cfm.{target.removeprefix(_WRAPPED).replace('.base_layer.', '.')}"
        old = tensors.get(target)
        if old is None or old.shape != new.shape:
            has = "none" if old is None else f"one of shape {tuple(old.shape)}"
            raise ModelError(
                f"the LoRA weights change '{target}' of shape {tuple(new.shape)}, and the "
                f"pretrained SoVITS model has {has}; they were trained on another one"
            )
        tensors[target] = new if layer == name else old.float() + new
    return replace(changes, tensors=tensors, lora_rank=None)


def read_torch_file(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Read the sections of a file, as tensors and plain data; nothing in it is executed.

    `mapped` leaves tensors on the disk where the file allows it; it must not change meanwhile.
    """
    import torch

    header = _first_bytes(path)[:2]
    try:
        with torch.serialization.safe_globals(_harmless()):
            if header in _MARKS and header != _ZIP:
                with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_COPY) as copy:
                    copy[: len(_ZIP)] = _ZIP
                    content = torch.load(copy, map_location="cpu", weights_only=True)  # type: ignore[arg-type]
            else:
                mapped = mapped and header == _ZIP
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}, not sections by name")
        counter = count()
        return {str(name): _plain(value, str(name), counter) for name, value in content.items()}
    except MemoryError:
        raise
    # Arbitrary bytes make the reader fail in arbitrary ways (IndexError, struct.error, …).
    except Exception as error:
        raise ModelError(
            f"'{path}' is no checkpoint that is safe to read: {first_line(error)}"
        ) from error


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: dict[str, Any],
    *,
    header: bytes = _ZIP,
    info: str = "converted by tts-compress",
) -> None:
    """Write a T2S model or a synthesizer as upstream's training does, in FP16."""
    import torch

    kept = {name: t for name, t in tensors.items() if not name.startswith(_POSTERIOR)}
    # `torch.save` writes all of what a view is of; the copy is of its own size.
    weight = {name: tensor.half().clone() for name, tensor in kept.items()}
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


def _harmless() -> list[Any]:
    """Return the classes that settings may hold, by the names that files give them.

    A path of the other operating system cannot be made as such, so all become pure ones.
    """
    names: list[Any] = [(_Attributes, "utils.HParams")]
    for module in ("pathlib", "pathlib._local"):  # the second since Python 3.13
        for flavour in (pathlib.PurePosixPath, pathlib.PureWindowsPath):
            names.append((flavour, f"{module}.{flavour.__name__}"))
            names.append((flavour, f"{module}.{flavour.__name__.removeprefix('Pure')}"))
    return names


def _plain(value: Any, name: str, counter: Iterator[int], depth: int = 0) -> Any:
    """Return settings and tensors as dictionaries, lists, strings and numbers."""
    import torch

    if depth > _DEPTH or next(counter) > _ITEMS:
        raise ValueError(f"section {name!r} holds more than any settings or weights do")
    if isinstance(value, _Attributes):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): _plain(item, name, counter, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name, counter, depth + 1) for item in value]
    if isinstance(value, pathlib.PurePath):
        return value.as_posix()
    if value is None or isinstance(value, str | int | float | torch.Tensor):
        return value
    raise TypeError(f"section {name!r} holds a {type(value).__name__}")


def _tensors(where: Path, content: Mapping[str, Any], *, check: bool) -> dict[str, Tensor]:
    """Return the section of the weights, their values checked or not."""
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
        check_finite(((n, t) for n, t in found.items() if not n.startswith(_POSTERIOR)), where)
    return {name: tensor.detach() for name, tensor in found.items()}


def _config(where: Path, content: Mapping[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    config = content.get("config")
    if not isinstance(config, dict):
        raise ModelError(f"'{where}' has no section 'config' with settings; fetch it again")
    for section in sections:
        if not isinstance(config.get(section), dict):
            raise ModelError(f"'{where}': its settings have no section '{section}'")
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:  # tensors, which are accepted among the weights
        raise ModelError(f"'{where}': its settings are no plain data: {error}") from error
    return config
