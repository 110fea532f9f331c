"""An artifact that was made up: its manifest is right, its graph is no graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tts_compress.artifact import MANIFEST_NAME, CalibrationRecord, Manifest, Source, with_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Return an artifact without a card, and a file in its folder that is not its own."""
    folder = tmp_path / "voice"
    folder.mkdir()
    (folder / "voice.onnx").write_bytes(bytes(range(256)) * 4)
    (folder / "voice.onnx.json").write_text('{"audio": {"sample_rate": 16000}}', encoding="utf-8")
    manifest = Manifest(
        family="piper",
        scheme="int8",
        source=Source(spec="/home/anna/voices/voice.onnx", sha256="ab" * 32, size_bytes=4096),
        recipe={},
        layers=(),
        counts={"Conv int8/static": 69},
        calibration=CalibrationRecord(
            set="en", sha256="cd" * 32, utterances=64, observer="percentile", seed=0
        ),
        seed=0,
        environment={"packages": {"tts-compress": "0.1.0", "onnxruntime": "1.31.1"}},
    )
    manifest = with_files(manifest, folder, "voice.onnx")
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    (folder / "notes.txt").write_text("not for others", encoding="utf-8")
    return folder
