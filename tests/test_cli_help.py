"""Help of the command line: examples that parse, defaults, exit codes; completion in shells."""

import re
import shlex
import shutil
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, _SubParsersAction
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tts_compress.cli import command_parser, main
from tts_compress.cli.command import options_from
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.recognizers import recognizer_names
from tts_compress.families import families
from tts_compress.options import USAGE
from tts_compress.qat.options import TrainingOptions
from tts_compress.search.options import SearchOptions, SensitivityOptions
from tts_compress.sweep.plan import Settings

_PARSER = command_parser()
_COMMANDS: dict[str, ArgumentParser] = next(
    action.choices for action in _PARSER._actions if isinstance(action, _SubParsersAction)
)


@pytest.fixture(params=sorted(_COMMANDS))
def command(request: pytest.FixtureRequest) -> ArgumentParser:
    return _COMMANDS[request.param]


def test_every_command_has_a_description_examples_that_parse_and_exit_codes(
    command: ArgumentParser,
) -> None:
    assert command.description
    assert re.search(r"(?m)^exit codes: 0 good, .*2 usage or bad input", command.epilog or "")
    examples = re.findall(r"(?m)^  tts-compress (.*)$", command.epilog or "")
    assert examples
    for example in examples:
        _PARSER.parse_args(shlex.split(example.partition(" > ")[0], comments=True))


def test_every_argument_has_help_that_states_its_default(command: ArgumentParser) -> None:
    for action in command._actions:
        assert action.help, action.dest
        if not isinstance(action.default, bool) and action.default not in (None, SUPPRESS, [], ""):
            shown = command._get_formatter()._expand_help(action)
            assert f"(default: {action.default})" in shown, f"{action.dest}: {shown}"


def test_the_parentheses_at_the_end_of_an_options_help_state_its_default(
    command: ArgumentParser,
) -> None:
    """`(the suite's)` and `(1)` did not say what they are."""
    for action in command._actions:
        shown = command._get_formatter()._expand_help(action)
        assert re.search(r"\((?!default: )[^()]*\)$", shown) is None, shown


def test_the_forms_of_a_model_are_listed_once(command: ArgumentParser) -> None:
    """The same twelve lines on all systems began the help of every command."""
    forms = [family.location for family in families().values() if family.name != "f5-tts"]
    assert [form for form in forms if form in " ".join(command.format_help().split())] == []
    listed = " ".join(_PARSER.format_help().split())
    assert [form for form in forms if form not in listed] == []


def test_the_help_names_every_recognizer() -> None:
    shown = " ".join(_COMMANDS["evaluate"].format_help().split())
    assert {name for name in recognizer_names() if name not in shown} == set()


def test_no_argument_prints_the_help_as_an_error_of_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.out == ""
    assert printed.err == _PARSER.format_help()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("quantise", "did you mean 'quantize'?"),
        ("eval", "did you mean 'evaluate'?"),
        ("gate out/report --gtes strict", "did you mean '--gates'?"),
        ("quantize demo --output x --format qddq", "did you mean 'qdq'?"),
        ("export demo --output x --frce", "did you mean '--force'?"),
        ("search m --output o --objective speed", "invalid choice: 'speed'"),
        ("qat m --output o --without-gain maybe", "(choose from 'keep', 'fail')"),
        ("evaluate a b --output o --seeds x", "--seeds: invalid int value: 'x'"),
        ("evaluate a b --output o --work x\0", "is no path"),
        ("export demo --output o --stream --fixed 64", "not allowed with argument --stream"),
    ],
)
def test_a_wrong_word_is_refused_and_a_near_miss_is_told_what_was_meant(
    typed: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split(" "))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("module", ["tts_compress", "tts_compress.cli"])
def test_the_package_runs_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"tts-compress \d+\.\d+\S*\n", shown)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in (*_COMMANDS, "max-wer-rise"):
        assert name in script


def test_bash_completes_commands_options_and_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options of paths were taken for ones of a type `Path`; theirs is a function that checks."""
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
    files = r"(?m)^_shtab_tts_compress_(\w+)_COMPGEN=_shtab_compgen_files"
    wanted = {"quantize___output", "evaluate___work", "gate___junit", "gate_pos_0", "card_pos_0"}
    assert wanted <= set(re.findall(files, script.read_text()))


_KINDS: dict[str, type[Any]] = {
    "evaluate a b --output o": EvaluationOptions,
    "qat m --output o": TrainingOptions,
    "search m --output o": SearchOptions,
    "sensitivity m --output o": SensitivityOptions,
}


def _parsed(line: str, kind: type[Any], **more: Any) -> Any:
    return options_from(_PARSER.parse_args(line.split()), kind, **more)


@pytest.mark.parametrize("line", _KINDS)
def test_a_command_without_options_has_the_defaults_of_the_dataclass(line: str) -> None:
    usual = _KINDS[line]()
    compared_by_identity = {field.name for field in fields(usual)} & {"progress", "sensitivity"}
    same = {name: getattr(usual, name) for name in compared_by_identity}
    assert _parsed(line, _KINDS[line], **same) == usual


@pytest.mark.parametrize("line", _KINDS)
def test_every_option_of_a_dataclass_is_one_of_its_command(line: str) -> None:
    parser = _PARSER.parse_args(line.split())
    declared = {field.name for field in fields(_KINDS[line]) if USAGE in field.metadata}
    assert declared
    assert declared <= vars(parser).keys()


def test_each_option_reaches_its_field(tmp_path: Path) -> None:
    kept = EvaluationOptions().progress
    line = (
        f"evaluate a b --output o --threads 2 --jobs 3 --wav --seeds 4 5 --any-language --blame "
        f"--recognizer r:m --speaker s --mos f.onnx@16000 --work {tmp_path} --listening-test"
    )
    assert _parsed(line, EvaluationOptions, progress=kept) == EvaluationOptions(
        threads=2,
        jobs=3,
        keep_wav=True,
        seeds=(4, 5),
        any_language=True,
        blame=True,
        recognizer="r:m",
        speaker="s",
        mos="f.onnx@16000",
        work=tmp_path,
        listening_test=True,
        progress=kept,
    )
    line = "qat m --output o --no-learned-ranges --clip 0 --mixed-precision bf16 --patience 2"
    expected = TrainingOptions(learned_ranges=False, clip=0, mixed_precision="bf16", patience=2)
    assert _parsed(line, TrainingOptions) == expected
    line = "search m --output o --judge 2 --groups a.* b --layers --formats float16 --seed 7"
    quiet = SensitivityOptions()
    assert _parsed(line, SensitivityOptions, progress=quiet.progress) == replace(
        quiet, groups=("a.*", "b"), each_layer=True, formats=("float16",), seed=7
    )
    assert _parsed(line, SearchOptions).judged == 2


def test_a_sweep_evaluates_with_the_same_defaults() -> None:
    """They are stated in a plan's `[settings]`, too, with its own limits."""
    usual = EvaluationOptions()
    assert Settings().model_dump() == {name: getattr(usual, name) for name in Settings.model_fields}


def test_without_docstrings_the_help_still_has_options() -> None:
    command = [sys.executable, "-OO", "-m", "tts_compress", "quantize", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--calibration SET" in shown
    assert "exit codes: 0 good" in shown
