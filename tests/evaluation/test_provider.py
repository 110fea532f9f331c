"""A voice by another provider of onnxruntime, for real: OpenVINO's, in processes that have it.

`make install` puts onnxruntime-openvino into a folder of its own: it takes onnxruntime's place.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from tests.families.conformance import write_suite
from tts_compress import compression, load
from tts_compress.recipes.recipe import Recipe

_NAME = "OpenVINOExecutionProvider"

_EVALUATE = """
import json, sys
from tts_compress import evaluate
from tts_compress.evaluation import EvaluationOptions
from tts_compress.models.execution import Execution
from tts_compress.progress import Silent

options = EvaluationOptions(
    timing_runs=1, jobs=1, recognizer="none", execution=Execution(provider=sys.argv[4]),
    progress=Silent(),
)
found = evaluate(*sys.argv[1:3], suite=sys.argv[3], output=sys.argv[5], options=options)
print(json.dumps([found.provider.model_dump(), found.warnings, found.candidate.settings]))
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Return the variables of a process with OpenVINO's provider; skip where it is not."""
    folder = Path(os.environ.get("TTS_COMPRESS_OPENVINO", Path(sys.prefix) / "openvino"))
    if not (folder / "onnxruntime").is_dir():
        pytest.skip(f"not in {folder}: pip install --target {folder} onnxruntime-openvino==1.24.1")
    paths = [str(folder), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}


@pytest.mark.slow
def test_a_report_names_the_provider_and_what_falls_back(
    environment: dict[str, str], compressed: Callable[[str], Path], tmp_path: Path
) -> None:
    """Standard operators do not; onnxruntime's own integers do."""
    suite, output = write_suite(tmp_path, ("Hello there.",)), tmp_path / "report"
    sides = [str(compressed(scheme)) for scheme in ("int8-static", "int8")]
    run = subprocess.run(
        [sys.executable, "-c", _EVALUATE, *sides, str(suite), _NAME, str(output)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    told, warnings, settings = json.loads(run.stdout.splitlines()[-1])
    assert settings == {"provider": _NAME}
    standard, own = told["reference"], told["candidate"]
    assert standard["provider"] == own["provider"] == _NAME
    assert list(standard["operators"]) == [_NAME]
    assert standard["operators"][_NAME] > 500
    assert standard["fallback"] == ""
    counts = own["operators"]
    assert counts["CPUExecutionProvider"] > 0
    (warning,) = [text for text in warnings if "fall back" in text]
    assert warning.startswith(
        f"candidate: {counts['CPUExecutionProvider']} of {sum(counts.values())} operators are not "
        f"computed by {_NAME}, but fall back: "
    )
    assert "QLinearConv (CPUExecutionProvider)" in warning
    assert "Operators by provider" in (output / "report.md").read_text(encoding="utf-8")


def test_standard_operators_are_the_default_for_a_provider(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [_NAME, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    formats: list[str] = []

    def note(model: Any, recipe: Recipe, *_: Any) -> Any:
        formats.append(recipe.format)
        return model

    monkeypatch.setattr(compression, "_compress_graphs", note)
    for voice in (load(tiny_path), load(tiny_path, provider=f"{_NAME}?device_type=CPU")):
        compression.compress(voice, "int8")
    assert formats == ["qoperator", "qdq"]
