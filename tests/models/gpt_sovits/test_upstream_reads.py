"""Files that are written here are read by upstream's own loaders, where a clone is at hand."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tts_compress.models.gpt_sovits import GPT_SOVITS
from tts_compress.models.gpt_sovits.checkpoint import VERSIONS, read_sovits, write_checkpoint

pytest.importorskip("torch")


# In a process of its own: the modules it brings would be in the way of another system's.
_PROGRAM = """
import json, sys
from tts_compress.models.checkout import find_checkout
from tts_compress.models.gpt_sovits import GPT_SOVITS
loaders = find_checkout(GPT_SOVITS).load("process_ckpt")
def settings(path):
    return loaders.load_sovits_new(path)["config"]
print(json.dumps([
    [loaders.get_sovits_version_from_path_fast(path), settings(path)["data"]["hop_length"],
     len(loaders.load_sovits_new(path)["weight"])]
    for path in sys.argv[1:]
]))
"""


@pytest.mark.skipif(GPT_SOVITS.variable not in os.environ, reason=f"{GPT_SOVITS.variable} not set")
def test_upstreams_loaders_read_what_is_written(
    tmp_path: Path, write_model: Callable[..., tuple[Path, Path]]
) -> None:
    told = {
        "v1": ["v1", "v1", False],
        "v2": ["v1", "v1", False],  # by size; it goes on by the number of symbols
        "v2Pro": ["v2", "v2Pro", False],
        "v2ProPlus": ["v2", "v2ProPlus", False],
        "v3": ["v2", "v3", False],
    }
    wanted, paths = [], []
    for version, fast in told.items():
        weights = read_sovits(write_model(version)[1])
        paths.append(tmp_path / f"{version}.pth")
        header = VERSIONS[version].header
        assert header is not None
        write_checkpoint(paths[-1], weights.tensors, weights.config, header=header)
        wanted.append([fast, 640, len(weights.tensors)])
    command = [sys.executable, "-c", _PROGRAM, *map(str, paths)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == wanted
