"""Help of the command line: examples that parse, defaults, exit codes; completion in shells."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, _SubParsersAction
from typing import TYPE_CHECKING

import pytest

from tts_compress.cli import command_parser, main

if TYPE_CHECKING:
    from pathlib import Path


def _commands() -> dict[str, ArgumentParser]:
    (found,) = (a for a in command_parser()._actions if isinstance(a, _SubParsersAction))
    return dict(found.choices)


@pytest.fixture(params=sorted(_commands()))
def command(request: pytest.FixtureRequest) -> ArgumentParser:
    return _commands()[request.param]


def test_every_command_has_a_description_examples_that_parse_and_exit_codes(
    command: ArgumentParser,
) -> None:
    assert command.description
    assert re.search(r"(?m)^exit codes: 0 good, .*2 usage or bad input", command.epilog or "")
    examples = re.findall(r"(?m)^  tts-compress (.*)$", command.epilog or "")
    assert examples
    for example in examples:
        command_parser().parse_args(shlex.split(example.partition(" > ")[0], comments=True))


def test_every_argument_has_help_that_states_its_default(command: ArgumentParser) -> None:
    for action in command._actions:
        assert action.help, action.dest
        if not isinstance(action.default, bool) and action.default not in (None, SUPPRESS, [], ""):
            shown = command._get_formatter()._expand_help(action)
            assert f"({action.default})" in shown, f"{action.dest}: {shown}"


@pytest.mark.parametrize("module", ["tts_compress", "tts_compress.cli"])
def test_the_package_runs_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"tts-compress \d+\.\d+\S*\n", shown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in (*_commands(), "max-wer-rise"):
        assert name in script


def test_bash_completes_commands_and_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    ask = (
        "source {script}; COMP_WORDS=(tts-compress {words}); COMP_CWORD={last}; "
        "$(complete -p tts-compress | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo ${{COMPREPLY[@]}}"
    )
    for words, found in (("quan", "quantize"), ("gate --ga", "--gates")):
        program = ask.format(script=script, words=words, last=len(words.split()))
        run = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=True)
        assert run.stdout.split() == [found]
