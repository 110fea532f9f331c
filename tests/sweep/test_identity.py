"""The environment of units: which code decides their results."""

import shutil
from pathlib import Path

import pytest

import tts_compress
from tts_compress.environment import code_hash
from tts_compress.sweep import work


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of this package's code that is hashed in its place."""
    own, copy = Path(tts_compress.__file__).parent, tmp_path / "tts_compress"
    shutil.copytree(own, copy, ignore=shutil.ignore_patterns("__pycache__", "voices", "templates"))
    monkeypatch.setattr(tts_compress, "__file__", str(copy / "__init__.py"))
    return copy


def _edit(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\n# another line\n")


def test_units_are_done_again_for_code_that_decides_and_for_no_other(package: Path) -> None:
    """An edit of the model card had all voices compressed and evaluated again.

    One of what does the units changed nothing: the whole package of sweeps was left out.
    """

    def hash_now() -> str:
        return work._code.__wrapped__()

    first = hash_now()
    nothing = [
        *("report/card.py", "report/html.py", "search/search.py", "cli/quantize.py"),
        *("terminal.py", "inspection/model.py", "sweep/page.py", "sweep/executors.py"),
    ]
    for name in nothing:
        _edit(package / name)
        assert hash_now() == first, name
    decisive = [
        *("sweep/work.py", "compression/__init__.py", "onnx/quantize/convert.py", "qat/task.py"),
        *("numerics/distortion.py", "evaluation/recognizers/whisper.py"),
        *("torch/convert.py", "models/parler/network.py", "numerics/weights.py", "audio.py"),
    ]
    for name in decisive:
        before = hash_now()
        _edit(package / name)
        assert hash_now() != before, name


def test_a_file_that_is_renamed_or_added_is_other_code(package: Path) -> None:
    first = code_hash("evaluation")
    metric = package / "evaluation" / "metrics" / "distortion.py"
    metric.rename(metric.with_name("another.py"))
    assert (second := code_hash("evaluation")) != first
    (package / "evaluation" / "recognizers" / "empty.py").touch()
    assert code_hash("evaluation") not in {first, second}
