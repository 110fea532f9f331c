"""Readers of a model's files: settings, tensors, and recordings to speak by.

Files may be damaged or hostile: any content gives a value or a `ModelError`, and none of it is run.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from tts_compress import reading
from tts_compress.errors import ModelError, model_errors, raising
from tts_compress.models.base import Prompt

if TYPE_CHECKING:
    from torch import Tensor

REFERENCE = "reference.wav"
REFERENCE_TEXT = "reference.txt"
"""The files beside a model that hold its prompt: a recording, and its text."""

STREAM_NAME = "stream/stream.json"
"""Settings of a voice's stages, beside its files."""

_MOST_YAML_BYTES = 1 << 20


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    with raising(ModelError, f"cannot read '{path}'"):
        return reading.read_json(path)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file, which can create no objects but plain data and dates."""
    import yaml

    # Numbers and dates that are none make the reader fail with errors of the types they become.
    with model_errors(f"cannot read '{path}'"):
        return yaml.safe_load(reading.read_text(path, _MOST_YAML_BYTES))


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Return the tensors of a `.safetensors`, or of what `torch.save` wrote of a `state_dict`."""
    import torch
    from safetensors.torch import load_file

    with model_errors(f"'{path}' is no checkpoint that is safe to read"):
        if path.suffix == ".safetensors":
            reading.check_file(path, reading.MOST_WEIGHTS_BYTES)
            content: Any = load_file(path)
        else:
            content = read_pickled(path)
        if not isinstance(content, dict) or not content:
            raise TypeError(f"it holds a {type(content).__name__}, not tensors by name")
        for name, value in content.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise TypeError(f"{name!r:.60} is a {type(value).__name__}, not a tensor")
    return dict(content)


def read_pickled(path: Path, **options: Any) -> Any:
    """Return what `torch.save` wrote: tensors and plain data; nothing in it is executed."""
    import torch

    with reading.open_file(path, reading.MOST_WEIGHTS_BYTES) as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                packed = [e for e in archive.infolist() if e.compress_type != zipfile.ZIP_STORED]
            if packed:  # what is packed can become a thousand times as large
                raise ValueError("it is packed, as torch.save never does")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error says what is wrong with a file
            content = torch.load(path, map_location="cpu", weights_only=True, **options)
    except pickle.UnpicklingError as error:
        # The message advises to read it without this safety.
        cause = re.search(r"Unsupported [^.\n]*|Trying to [^.\n]*|Can only [^.\n]*", str(error))
        raise ValueError(cause[0] if cause else "it is no archive of tensors") from error
    size = path.stat().st_size
    for tensor in _tensors(content):
        if tensor.numel() * tensor.element_size() > size:
            raise ValueError(f"a tensor of shape {list(tensor.shape)} is larger than the file")
    return content


def path_classes() -> list[Any]:
    """Return classes for the paths in a checkpoint, by the names that files give them.

    A path of the other operating system cannot be made as such, so all become pure ones.
    """
    names: list[Any] = []
    for module in ("pathlib", "pathlib._local"):  # the second in Python 3.13
        for flavour in (PurePosixPath, PureWindowsPath):
            names.append((flavour, f"{module}.{flavour.__name__}"))
            names.append((flavour, f"{module}.{flavour.__name__.removeprefix('Pure')}"))
    return names


def _tensors(content: Any) -> "Iterator[Tensor]":
    """Yield the tensors in plain data; what stands in several places is gone through once."""
    import torch

    waiting, seen = [content], set[int]()
    while waiting:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            waiting += item.values() if isinstance(item, dict) else item


def check_finite(weights: Iterable[tuple[str, "Tensor"]], where: Path | str) -> None:
    """Refuse weights with an infinite value or NaN, as a damaged file has them."""
    for name, tensor in weights:
        if not tensor.isfinite().all():
            raise ModelError(f"'{where}': weight '{name}' has values that are not finite")


def find_prompt(directory: Path) -> Prompt:
    """Return the reference recording in a folder and its text, where they are there."""
    audio, text = directory / REFERENCE, directory / REFERENCE_TEXT
    if not audio.is_file():
        return Prompt()
    with raising(ModelError, f"cannot read '{text}'"):
        spoken = reading.read_text(text).strip() if text.is_file() else None
    return Prompt(audio=audio, text=spoken or None)


def write_prompt(prompt: Prompt, directory: Path) -> None:
    """Write the files that `find_prompt` finds; what the prompt lacks is left out."""
    if prompt.audio is not None:
        write_recording(prompt.audio, directory / REFERENCE)
    if prompt.text is not None:
        (directory / REFERENCE_TEXT).write_text(f"{prompt.text}\n", encoding="utf-8")


def check_duration(path: Path, limits_s: tuple[float, float] = (0.5, 60.0)) -> None:
    """Refuse a file that cannot be a reference recording, without reading all of it."""
    header = read_header(path)
    duration_s = header.frames / header.samplerate
    shortest, longest = limits_s
    if not shortest <= duration_s <= longest:
        raise ModelError(
            f"'{path}' is {duration_s:.1f} s long; give a recording of "
            f"{shortest:g} to {longest:g} s"
        )


def read_header(path: Path) -> Any:
    """Return the `soundfile.info` of a recording."""
    import soundfile

    with model_errors(f"cannot read audio from '{path}'"):
        reading.check_file(path, reading.MOST_AUDIO_BYTES)
        return soundfile.info(path)


def write_recording(source: Path, target: Path) -> None:
    """Write a recording as 16-bit WAV, which every reader knows; one that is keeps its samples."""
    import numpy as np
    import soundfile

    with model_errors(f"cannot read audio from '{source}'"):
        exact = read_header(source).subtype == "PCM_16"
        samples, rate = soundfile.read(source, dtype="int16" if exact else "float32")
    if not np.isfinite(samples).all():
        raise ModelError(f"'{source}' holds values that are not finite; record it again")
    if not exact:
        samples = np.clip(np.round(samples * 32768), -32768, 32767).astype(np.int16)
    soundfile.write(target, samples, rate, subtype="PCM_16", format="WAV")
