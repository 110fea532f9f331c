"""Options that several commands share: the clone's path, and the recording to speak by."""

import os
from pathlib import Path
from typing import Any

import pytest

from tts_compress.cli import main
from tts_compress.evaluation.process import _environment
from tts_compress.export import stream
from tts_compress.families import Upstream


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environment of each worker that would be started while a model is opened."""
    found: list[dict[str, str]] = []
    from tts_compress import models
    from tts_compress.evaluation import subject  # has its own name for `load`

    def open_model(*_: Any, **__: Any) -> None:
        found.append(_environment("model", 1))
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "open_model", open_model)
    monkeypatch.setattr(models, "load", open_model)
    monkeypatch.setattr(subject, "load", open_model)
    return found


@pytest.mark.parametrize("command", ["quantize", "qat", "inspect", "synthesize", "evaluate"])
def test_a_clone_is_recognised_and_named_to_workers_while_the_command_runs(
    command: str,
    upstream: Upstream,
    clone: Path,
    seen: list[dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if command == "qat":
        pytest.importorskip("accelerate")
    more = {"synthesize": ["Hello."], "evaluate": ["candidate"]}.get(command, [])
    output = [] if command == "inspect" else ["--output", str(tmp_path / "out")]
    monkeypatch.chdir(clone.parent)
    arguments = [command, "model", *more, *output, "--checkout", clone.name]
    assert main(arguments) == 130
    assert [variables[upstream.variable] for variables in seen] == [str(clone.resolve())]
    assert upstream.variable not in os.environ

    monkeypatch.setenv(upstream.variable, "another")
    assert main(arguments) == 130
    assert seen[1][upstream.variable] == str(clone.resolve())
    assert os.environ[upstream.variable] == "another"


def test_a_folder_that_is_no_clone_is_refused(
    tmp_path: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert main(["inspect", str(tiny_path), "--checkout", str(folder)]) == 2
        said = capsys.readouterr().err
        assert f"'{folder}' is no clone of GPT-SoVITS or Amphion" in said
        assert "GPT_SoVITS/process_ckpt.py" in said


@pytest.mark.parametrize("option", ["--reference", "--reference-text", "--description"])
@pytest.mark.parametrize("command", ["quantize", "qat", "synthesize"])
def test_a_prompt_for_a_voice_that_takes_none_is_refused(
    command: str,
    option: str,
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command == "qat":
        pytest.importorskip("accelerate")
    text = ["Hello."] if command == "synthesize" else []
    arguments = [command, str(tiny_path), *text, "--output", str(tmp_path / "out")]
    assert main([*arguments, option, "x.wav"]) == 2
    assert "speaks by no prompt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", [("--stream",), ("--web",), ("--fixed", "64")])
def test_feeds_are_refused_where_none_are_recorded(
    form: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert main(["export", "demo", *form, "--feeds", "en", "--output", str(output)]) == 2
    assert "--feeds is of a system in torch" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["synthesize", "nothing.onnx", "Hello.", "--output", "no/x.wav"], "'no' is not a dir"),
        (["export", "nothing.onnx", "--stream", "--output", "."], "is the current directory"),
    ],
)
def test_what_no_output_can_come_of_is_refused_before_a_model_is_opened(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", ["quantize", "stream", "synthesize"])
def test_a_seed_below_zero_is_refused_before_a_model_is_opened(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = [] if command == "quantize" else ["Hello."]
    with pytest.raises(SystemExit, match="2"):
        main([command, "nothing.onnx", *text, "--output", "x.wav", "--seed", "-1"])
    assert "seed -1 is negative; give 0 or a larger" in capsys.readouterr().err


def test_export_names_every_file_that_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It left out the file of weights, without which no graph opens."""
    names = ("demo.onnx", "stream/stage1.onnx", "stream/weights.bin")

    def export_stream(*_: Any, **__: Any) -> None:
        for name in names:
            (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "out" / name).touch()

    monkeypatch.setattr(stream, "export_stream", export_stream)
    assert main(["export", "demo", "--stream", "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "".join(f"written: {tmp_path / 'out' / n}\n" for n in names)
