"""Binary files: tensors, checkpoints and recordings."""

import copy
import io
import json
import random
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
import torch

from benchmarks.fuzz.mutate import json_text, mutate_bytes, mutate_json
from tts_compress import load_module, save_module
from tts_compress.audio import read_wav
from tts_compress.compression import compress
from tts_compress.models import open_model
from tts_compress.models.files import check_duration, read_tensors


@cache
def _module() -> tuple[Any, bytes]:
    """Return a module, and the file of its compressed form."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Conv1d(64, 64, 3)).eval()
    with TemporaryDirectory() as folder:
        saved = save_module(compress(net, "int8-weight-only"), Path(folder) / "net.safetensors")
        return net, saved.read_bytes()


def write_safetensors(folder: Path, dice: random.Random) -> None:
    """Write the changed file of a compressed module."""
    content = _module()[1]
    length = int.from_bytes(content[:8], "little")
    if dice.random() < 0.6:
        header = mutate_json(json.loads(content[8 : 8 + length]), dice)
        text = json_text(header, dice)
        stated = dice.choice((len(text),) * 8 + (0, 1 << 62, len(text) - 1))
        content = stated.to_bytes(8, "little") + text + content[8 + length :]
    else:
        content = mutate_bytes(content, dice)
    (folder / "net.safetensors").write_bytes(content)


def read_safetensors(folder: Path, dice: random.Random) -> object:
    """Load the file into its module, or read its tensors."""
    path = folder / "net.safetensors"
    if dice.random() < 0.4:
        return read_tensors(path)
    return load_module(copy.deepcopy(_module()[0]), path)


@cache
def _pickled(*, zipped: bool, settings: bool) -> bytes:
    """Return what torch saves of tensors, or of tensors and settings, as a training does."""
    file, weight = io.BytesIO(), torch.ones(4, 8)
    content: dict[str, Any] = {"a": weight, "b": weight[1:, ::2]}
    if settings:
        content = {"state_dict": content, "hyper_parameters": {"n": [1]}}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def write_checkpoint(folder: Path, dice: random.Random) -> None:
    """Write changed bytes or pickles of what torch saves."""
    settings = dice.random() < 0.3
    if dice.random() < 0.3:
        content = mutate_bytes(_pickled(zipped=dice.random() < 0.5, settings=settings), dice)
    else:  # a pickle that lies, in an archive that is whole
        file = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(_pickled(zipped=True, settings=settings))) as original,
            zipfile.ZipFile(file, "w") as archive,
        ):
            for name in original.namelist():
                entry = original.read(name)
                is_lying = name.endswith(".pkl") or dice.random() < 0.1
                archive.writestr(name, mutate_bytes(entry, dice) if is_lying else entry)
        content = file.getvalue()
    (folder / "voice.ckpt").write_bytes(content)


def read_checkpoint(folder: Path, dice: random.Random) -> object:
    """Read its tensors, or open it as a voice."""
    path = folder / "voice.ckpt"
    return read_tensors(path) if dice.random() < 0.5 else open_model(str(path))


def write_recording(folder: Path, dice: random.Random) -> None:
    """Write a recording whose header is changed."""
    file, kind = io.BytesIO(), dice.choice(("WAV", "FLAC", "OGG"))
    soundfile.write(file, np.zeros(8_000, np.float32), 8_000, format=kind)
    content = file.getvalue()
    head = mutate_bytes(content[:128], dice) if dice.random() < 0.7 else content[:128]
    (folder / "speech.wav").write_bytes(head + content[128:])


def read_recording(folder: Path, _: random.Random) -> object:
    """Read it as the speech that a voice is to continue."""
    check_duration(folder / "speech.wav", (0.5, 30.0))
    return read_wav(folder / "speech.wav")
