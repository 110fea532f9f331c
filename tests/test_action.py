"""The composite action: its shell steps as a runner of GitHub runs them, on the demo voice."""

import ast
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.suites import suite_text

_ROOT = Path(__file__).parents[1]
_EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    """Return the action's file."""
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((_ROOT / "action.yml").read_text(encoding="utf-8"))
    return found


def test_no_input_is_read_as_a_command(action: dict[str, Any]) -> None:
    """An expression inside a script is pasted before the shell reads it."""
    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert steps
    for step in steps:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], step["name"]


def test_every_expression_names_something(action: dict[str, Any]) -> None:
    """GitHub replaces a mistyped name by nothing, without a word."""
    text = (_ROOT / "action.yml").read_text(encoding="utf-8")
    used = set(re.findall(r"inputs\.([\w-]+)", text))
    assert used == set(action["inputs"])
    steps = {step["id"]: step for step in action["runs"]["steps"] if "id" in step}
    for step, name in re.findall(r"steps\.([\w-]+)\.outputs\.([\w-]+)", text):
        assert "uses" in steps[step] or f"{name}=" in steps[step]["run"]


@dataclass
class Runner:
    """The part of a runner that shell steps see."""

    action: dict[str, Any]
    folder: Path
    inputs: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    printed: str = ""

    def __post_init__(self) -> None:
        """Make the environment that the step of installation makes."""
        self.temporary, self.summary = self.folder / "temp", self.folder / "summary.md"
        program = self.temporary / "tts-compress" / "bin" / "tts-compress"
        program.parent.mkdir(parents=True)
        command = f'exec "{sys.executable}" -m tts_compress.cli "$@"'
        program.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def run(self, name: str) -> int:
        """Run a step; return its exit code."""
        (step,) = [one for one in self.action["runs"]["steps"] if one.get("name") == name]
        output = self.folder / "output.txt"
        output.write_text("", encoding="utf-8")
        files = {
            "RUNNER_TEMP": str(self.temporary),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_ACTIONS": "true",
            "PYTHONPATH": str(_ROOT),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        given = {key: _EXPRESSION.sub(self._value, text) for key, text in step["env"].items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],  # noqa: S607
            cwd=self.folder,
            env=os.environ | files | given,
            capture_output=True,
            text=True,
            check=False,
        )
        self.printed = done.stdout + done.stderr
        lines = output.read_text(encoding="utf-8").splitlines()
        self.outputs |= dict(line.split("=", 1) for line in lines)
        return done.returncode

    def _value(self, expression: re.Match[str]) -> str:
        runner = {
            "steps.python.outputs.python-path": sys.executable,
            "github.action_path": str(_ROOT),
        }
        return runner.get(expression[1]) or self.inputs[expression[1].removeprefix("inputs.")]


def test_other_actions_are_named_by_their_commit(action: dict[str, Any]) -> None:
    """A tag can be moved to other code, which would run with the token of the user's job."""
    used = [step["uses"] for step in action["runs"]["steps"] if "uses" in step]
    assert used
    for name in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name), name


_PARSER = """
import sys
from tts_compress.cli import command_parser
given = vars(command_parser().parse_args(sys.argv[1:]))
print({name: str(given.get(name)) for name in ("model", "reference", "scheme", "suite", "output")})
"""


@pytest.mark.parametrize(
    ("step", "read"),
    [
        ("Quantize", {"model": "-voice.onnx", "scheme": "-s", "output": "-o/model"}),
        ("Evaluate", {"reference": "-voice.onnx", "suite": "-t", "output": "-o/report"}),
    ],
)
def test_a_value_that_begins_with_a_dash_is_no_option(
    action: dict[str, Any], tmp_path: Path, step: str, read: dict[str, str]
) -> None:
    """`model: -h` printed the help, and the step passed."""
    defaults = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
    chosen = {"model": "-voice.onnx", "scheme": "-s", "suite": "-t", "output": "-o"}
    runner = Runner(action, tmp_path, defaults | chosen)
    program = tmp_path / "temp" / "tts-compress" / "bin" / "tts-compress"
    (tmp_path / "parser.py").write_text(_PARSER, encoding="utf-8")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/parser.py" "$@"\n', "utf-8")
    assert runner.run(step) == 0, runner.printed
    assert ast.literal_eval(runner.printed).items() >= read.items()


@pytest.mark.parametrize(
    ("step", "name"),
    [("Quantize", "quantize-options"), ("Evaluate", "evaluate-options"), ("Gate", "gates")],
)
def test_an_input_of_many_lines_is_read_to_its_end(
    action: dict[str, Any], tmp_path: Path, step: str, name: str
) -> None:
    """Gates on later lines were not judged, and the step passed."""
    defaults = {key: str(one.get("default", "")) for key, one in action["inputs"].items()}
    runner = Runner(action, tmp_path, defaults | {"model": "demo", name: "-a b\n-c\n"})
    program = tmp_path / "temp" / "tts-compress" / "bin" / "tts-compress"
    program.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    assert runner.run(step) == 0, runner.printed
    wanted = "--gates=-a --gates=b --gates=-c" if step == "Gate" else "-a b -c --"
    assert wanted in runner.printed


def test_what_failed_before_the_gates_did_not_pass(action: dict[str, Any]) -> None:
    """The output was empty, which is neither."""
    value = action["outputs"]["passed"]["value"]
    assert value == "${{ steps.gate.outputs.passed || 'false' }}"


@pytest.mark.slow
def test_the_cache_has_a_key_of_what_is_installed(action: dict[str, Any], tmp_path: Path) -> None:
    """Every run downloaded 0.6 GB."""
    keys = []
    for number, extras in enumerate(("piper,evaluate", "piper", "piper")):
        folder = tmp_path / str(number)
        folder.mkdir()
        runner = Runner(action, folder, {"extras": extras})
        assert runner.run("Find pip's downloads") == 0, runner.printed
        assert Path(runner.outputs["folder"]).is_absolute()
        keys.append(runner.outputs["key"])
    assert re.fullmatch("[0-9a-f]{64}", keys[0]), "commas are not accepted there"
    assert keys[0] != keys[1] == keys[2]


@pytest.mark.slow
def test_the_steps_on_the_demo_voice(action: dict[str, Any], tmp_path: Path) -> None:
    """They quantize, evaluate and judge; a failing gate still leaves everything to read."""
    pytest.importorskip("piper")
    pytest.importorskip("pocketsphinx")
    suite = suite_text(
        ["The train was late this morning.", "Please leave the folder on the table."]
    )
    (tmp_path / "tiny.toml").write_text(suite, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(_GATES, encoding="utf-8")
    defaults = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
    chosen = {"model": "demo", "scheme": "bf16", "suite": "tiny.toml"}
    runner = Runner(action, tmp_path, defaults | chosen | {"gates": "mine.toml"})
    for name in ("Quantize", "Evaluate"):
        assert runner.run(name) == 0, runner.printed
    assert (tmp_path / runner.outputs["model"] / "demo.onnx").is_file()
    report = tmp_path / runner.outputs["report"]
    assert sum(path.stat().st_size for path in report.rglob("*")) < 3_000_000  # no scratch data

    assert runner.run("Gate") == 0, runner.printed
    assert runner.outputs["passed"] == "true"
    runner.summary.write_text("# Another step\n", encoding="utf-8")
    runner.inputs |= {"against": str(report / "report.json"), "gates": "mine.toml cost"}
    assert runner.run("Gate") == 1, "16 bits are not a third, which `cost` asks for"
    assert runner.outputs["passed"] == "false"
    assert "::error title=tts-compress gate cost::size" in runner.printed
    comment = (tmp_path / runner.outputs["comment"]).read_text(encoding="utf-8")
    # The size and the two that are not judged; speed and first sound as the machine happens to be.
    assert re.fullmatch(
        r"## tts-compress-out/model \(bf16\): [345] of 9 gates failed", comment.splitlines()[0]
    )
    assert comment.count("nothing was judged: too little was measured for an interval") == 2
    assert runner.summary.read_text(encoding="utf-8") == f"# Another step\n{comment}"
    text = (tmp_path / runner.outputs["junit"]).read_text(encoding="utf-8")
    suites = ElementTree.fromstring(text)  # noqa: S314 -- our own
    assert [one.get("name") for one in suites] == ["mine", "cost", "regression"]

    runner.inputs["against"] = str(_ROOT / "eval" / "reports" / "demo-int8.json")
    del runner.outputs["comment"]
    assert runner.run("Gate") == 2, "another suite"
    assert "not comparable" in runner.printed
    assert runner.outputs["passed"] == "false"
    assert "comment" not in runner.outputs


_GATES = """
version = 1
name = "mine"
summary = "That of the words is wide for two sentences."

[[gate]]
metric = "signal.snr_db"
limit = 15.0
direction = "at-least"
kind = "absolute"

[[gate]]
metric = "wer.delta"
limit = 0.5
direction = "at-most"
kind = "absolute"
"""
