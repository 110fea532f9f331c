"""Options that are declared once, with the fields of the dataclasses that hold their values."""

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tts_compress.cli import command_parser, main
from tts_compress.cli.command import options_from
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.options import USAGE
from tts_compress.qat.options import TrainingOptions
from tts_compress.search.options import SearchOptions, SensitivityOptions
from tts_compress.sweep.plan import Settings

_KINDS: dict[str, type[Any]] = {
    "evaluate a b --output o": EvaluationOptions,
    "qat m --output o": TrainingOptions,
    "search m --output o": SearchOptions,
    "sensitivity m --output o": SensitivityOptions,
}


def _parsed(line: str, kind: type[Any], **more: Any) -> Any:
    return options_from(command_parser().parse_args(line.split()), kind, **more)


@pytest.mark.parametrize("line", _KINDS)
def test_a_command_without_options_has_the_defaults_of_the_dataclass(line: str) -> None:
    usual = _KINDS[line]()
    compared_by_identity = {field.name for field in fields(usual)} & {"progress", "sensitivity"}
    same = {name: getattr(usual, name) for name in compared_by_identity}
    assert _parsed(line, _KINDS[line], **same) == usual


@pytest.mark.parametrize("line", _KINDS)
def test_every_option_of_a_dataclass_is_one_of_its_command(line: str) -> None:
    parser = command_parser().parse_args(line.split())
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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("search m --output o --objective speed", "invalid choice: 'speed'"),
        ("qat m --output o --without-gain maybe", "(choose from 'keep', 'fail')"),
        ("evaluate a b --output o --seeds x", "--seeds: invalid int value: 'x'"),
        ("evaluate a b --output o --work x\0", "is no path"),
    ],
)
def test_a_wrong_value_is_refused(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split(" "))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_sweep_evaluates_with_the_same_defaults() -> None:
    """They are stated in a plan's `[settings]`, too, with its own limits."""
    usual = EvaluationOptions()
    assert Settings().model_dump() == {name: getattr(usual, name) for name in Settings.model_fields}


def test_completion_completes_the_paths_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    """It looked for options of type `Path`, and theirs is a function that checks a path."""
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    files = re.findall(r"(?m)^_shtab_tts_compress_(\w+)_COMPGEN=_shtab_compgen_files", script)
    wanted = {"quantize___output", "evaluate___work", "gate___junit", "gate_pos_0", "card_pos_0"}
    assert wanted <= set(files)


def test_without_docstrings_the_help_still_has_options() -> None:
    command = [sys.executable, "-OO", "-m", "tts_compress", "quantize", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--calibration SET" in shown
    assert "exit codes: 0 good" in shown
