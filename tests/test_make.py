"""The Makefile: what its targets give the command line, whatever text MODEL is."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_STUB = (
    '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done >> "$CALLS"; echo >> "$CALLS"\n'
)

_MAKE = shutil.which("make") or ""

pytestmark = pytest.mark.skipif(not _MAKE, reason="no make here")


def _make(target: str, *words: str, **variables: str) -> str:
    """Return what make prints; its own variables, as of a make above, are left out."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    run = subprocess.run(
        [_MAKE, "--no-print-directory", *words, target],
        cwd=_ROOT,
        env=clean | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def _calls(tmp_path: Path, target: str, *words: str) -> list[list[str]]:
    """Return the command lines of tts-compress, a stub in environments that are set up."""
    calls = tmp_path / "calls"
    for home in ("", "-f5", "-gpt-sovits"):
        environment = tmp_path / f"venv{home}"
        (environment / "bin").mkdir(parents=True, exist_ok=True)
        program = environment / "bin" / "tts-compress"
        program.write_text(_STUB)
        program.chmod(0o755)
        for stamp in (".user", ".transformers", ".developer"):  # each is newer than the last
            (environment / stamp).touch()
    _make(target, f"VENV={tmp_path / 'venv'}", *words, CALLS=str(calls))
    return [call.split("\n") for call in calls.read_text().rstrip("\n").split("\n\n")]


def _output(call: list[str]) -> str:
    return call[call.index("--output") + 1]


@pytest.mark.parametrize(
    "model",
    ["f5-tts:DIR?nfe_step=16&cfg_strength=2", "it's my voices; a/voice.onnx", 'a "voice".onnx'],
)
def test_a_model_reaches_the_commands_as_it_was_given(model: str, tmp_path: Path) -> None:
    """`&` sent half of the command to the background, a space made two models of one."""
    quantize, evaluate = _calls(tmp_path, "quantize", f"MODEL={model}", "CHECKOUT=my clone")
    assert quantize[:2] == ["quantize", model]
    output = _output(quantize)
    assert evaluate[:3] == ["evaluate", model, output]
    assert _output(evaluate) == f"{output}-report"
    for call in (quantize, evaluate):
        assert call[call.index("--checkout") + 1] == "my clone"


@pytest.mark.parametrize(
    ("model", "name"), [("demo", "demo"), ("voice.onnx", "voice"), ("voice.ckpt", "voice.ckpt")]
)
def test_plain_names_name_the_output(model: str, name: str, tmp_path: Path) -> None:
    quantize, _ = _calls(tmp_path, "quantize", f"MODEL={model}")
    assert _output(quantize) == f"out/{name}-int8"


def test_no_two_models_have_one_output(tmp_path: Path) -> None:
    """With `--force`, the second of two voices of one name replaced the first."""
    models = (
        *("voice.onnx", "a/voice.onnx", "b/voice.onnx", "../voice.onnx", "/voice.onnx"),
        *("onnx:voice.onnx", "f5-tts:voice", "transformers:a/voice", "f5-tts:/models/voice/"),
        *("f5-tts:/models/voice?nfe_step=4", "f5-tts:/models/voice?nfe_step=8", "voice.ckpt"),
    )
    calls = tmp_path / "calls"
    outputs = set()
    for model in models:
        outputs.add(_output(_calls(tmp_path, "quantize", f"MODEL={model}")[0]))
        calls.unlink()
    assert len(outputs) == len(models)
    assert all(Path(output).name.startswith("voice") for output in outputs), outputs


def test_a_bare_graph_gets_its_arrays_and_is_not_asked_to_speak(tmp_path: Path) -> None:
    (quantize,) = _calls(tmp_path, "quantize", "MODEL=onnx:my net.onnx", "CALIBRATION=my feeds.npz")
    assert quantize[:2] == ["quantize", "onnx:my net.onnx"]
    assert quantize[quantize.index("--calibration") + 1] == "my feeds.npz"


def test_outputs_may_have_any_name_too(tmp_path: Path) -> None:
    output = f"OUT={tmp_path}/it's here"
    quantize, evaluate = _calls(tmp_path, "quantize", output)
    assert _output(quantize) == evaluate[2] == f"{tmp_path}/it's here"
    (tmp_path / "calls").unlink()
    ((_, report),) = _calls(tmp_path, "gate", output, "GATES=")
    assert report == f"{tmp_path}/it's here-report"


@pytest.mark.parametrize(
    ("target", "model", "installed"),
    [
        ("quantize", "transformers:facebook/mms-tts-deu", "transformers-tts"),
        ("quantize", "voice.ckpt", "torch"),
        ("qat", "voice.onnx", "torch"),
    ],
)
def test_a_fresh_clone_installs_what_the_model_needs(
    target: str, model: str, installed: str, tmp_path: Path
) -> None:
    """Voices of transformers got an environment without torch."""
    plan = _make(target, "--dry-run", f"VENV={tmp_path / 'venv'}", f"MODEL={model}")
    install = [line for line in plan.splitlines() if " install " in line]
    assert any(line.endswith(" torch") for line in install)
    extras = [line.partition(".[")[2].partition("]")[0].split(",") for line in install]
    assert any(installed in extra for extra in extras), plan
