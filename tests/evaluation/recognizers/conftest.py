"""Two tiny Whispers, and two sounds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation import tiny_whisper
from tts_compress.audio import Audio

_KNOWN = ("all", "only")
"""Languages of the two Whispers."""


@pytest.fixture(scope="session")
def whisper_folders(made_once: Callable[..., Path]) -> dict[str, Path]:
    """Return two Whispers as transformers writes them: `all` languages, and English `only`."""
    pytest.importorskip("transformers.models.whisper")

    def write(root: Path) -> None:
        for name in _KNOWN:
            tiny_whisper.build(root / name, multilingual=name == "all")

    root = made_once("whisper", write)
    return {name: root / name for name in _KNOWN}


@pytest.fixture(scope="session")
def converted(whisper_folders: dict[str, Path], made_once: Callable[..., Path]) -> dict[str, Path]:
    """Return the same two in CTranslate2's format."""
    pytest.importorskip("faster_whisper")

    def write(root: Path) -> None:
        root.mkdir()
        for name, folder in whisper_folders.items():
            tiny_whisper.convert(folder, root / name)

    root = made_once("ctranslate2", write)
    return {name: root / name for name in _KNOWN}


@pytest.fixture(scope="session")
def sounds() -> list[Audio]:
    """Return two different sounds at a rate that no recognizer has."""
    noise = np.random.default_rng(0).normal(0, 0.1, 88_200).astype(np.float32)
    tone = np.sin(np.arange(88_200) * 0.1).astype(np.float32)
    return [Audio(samples=samples, sample_rate=22_050) for samples in (noise, tone)]
