"""The command line: exit codes, one plain line per error, JSON on request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node
from tts_compress.audio import read_wav
from tts_compress.cli import main
from tts_compress.families import family_names


@pytest.mark.slow
def test_quantize_saves_an_artifact_and_prints_its_contents(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "small"
    arguments = ["quantize", str(tiny_path), "--scheme", "int8-weight-only"]
    assert main([*arguments, "--output", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "times smaller" in printed
    assert "Conv int8/none" in printed
    assert "times as fast, on one thread" in printed
    assert (target / "manifest.json").is_file()


def test_quantize_prints_json_and_overwrites_only_with_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64))
    graph = make_model(
        [make_node("MatMul", "x w", "y")], {"x": [1, 64]}, {"y": None}, {"w": weight}
    )
    onnx.save(graph, tmp_path / "graph.onnx")
    target = tmp_path / "small"
    arguments = ["quantize", f"onnx:{tmp_path / 'graph.onnx'}", "--scheme", "bf16", "--no-time"]
    arguments += ["--output", str(target), "--json"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["scheme"] == "bf16"
    assert printed["candidate_bytes"] == (target / "graph.onnx").stat().st_size
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0


def test_quantize_tells_before_it_trains_which_command_goes_on_after_an_interruption(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("version = 1\n")  # refused before minutes of training
    arguments = ["quantize", str(tiny_path), "--calibration", str(empty)]
    arguments += ["--output", str(tmp_path / "out")]
    assert main([*arguments, "--scheme", "int8-qat"]) == 2
    assert "`tts-compress qat` goes on where it ended" in capsys.readouterr().err
    assert main(arguments) == 2
    assert "`tts-compress qat`" not in capsys.readouterr().err


def _no_suite(tmp_path: Path, voice: Path) -> list[str]:
    paths = [str(voice), str(voice)]
    return ["evaluate", *paths, "--suite", "klingon", "--output", str(tmp_path / "o")]


def _unwritable(tmp_path: Path, voice: Path) -> list[str]:
    (tmp_path / "file").write_text("not a directory")
    arguments = ["quantize", str(voice), "--scheme", "bf16"]
    return [*arguments, "--output", str(tmp_path / "file" / "o")]


def _mp3(tmp_path: Path, voice: Path) -> list[str]:
    return ["synthesize", str(voice), "Hello.", "--output", str(tmp_path / "o.MP3")]


def _no_report(tmp_path: Path, _: Path) -> list[str]:
    return ["gate", str(tmp_path / "report.json")]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_no_suite, "en-full, en-quick"),
        (_unwritable, "cannot write"),
        (_mp3, "write 'o.wav'"),
        (_no_report, "report.json"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_bad_input_gets_one_plain_line_and_exit_code_2(
    make: Callable[[Path, Path], list[str]],
    says: str,
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(make(tmp_path, tiny_path)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert says in lines[0]
    assert not (tmp_path / "o").exists()
    assert not (tmp_path / "o.MP3").exists()


@pytest.mark.slow
def test_synthesize_writes_speech_that_a_seed_repeats(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, other = (tmp_path / f"{name}.wav" for name in ("first", "second", "other"))
    for path, seed in ((first, "1"), (second, "1"), (other, "2")):
        arguments = ["synthesize", str(tiny_path), "Hello there.", "--seed", seed]
        assert main([*arguments, "--output", str(path)]) == 0
    assert "s of speech" in capsys.readouterr().out
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_inspect_shows_components_and_what_was_done(
    compressed: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(compressed("int8")), "--no-time", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scheme"] == "int8"
    assert [part["name"] for part in found["components"]] == ["enc_p", "dp", "flow", "dec"]
    assert sum(found["counts"].values()) == sum(
        sum(part["operators"].values()) for part in found["components"]
    )
    assert main(["inspect", str(compressed("int8")), "--no-time"]) == 0
    assert "predictor" in capsys.readouterr().out


def test_schemes_lists_every_scheme_with_its_families(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("tts_compress.cli.schemes._has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert main(["schemes", "--json"]) == 0
    rows = {row["scheme"]: row for row in json.loads(capsys.readouterr().out)["schemes"]}
    assert rows["fp8"]["families"] == ["module"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    assert main(["schemes", "--json"]) == 0
    found = {
        row["scheme"]: row["families"] for row in json.loads(capsys.readouterr().out)["schemes"]
    }
    assert found["int8"] == family_names()
    assert found["fp8"] == [], "it could only fail"
    assert main(["schemes"]) == 0
    printed = capsys.readouterr().out
    assert "capability 8.9 (no such GPU here)" in printed
    assert "int8-weight-only" in printed
    assert "()" not in printed, "`mixed` is of no family: search writes its recipes"


def test_help_and_import_load_no_heavy_package() -> None:
    heavy = {"torch", "onnxruntime", "onnx", "numpy", "pydantic", "rich", "matplotlib"}
    program = (
        "import sys; from tts_compress.cli import command_parser; command_parser().format_help(); "
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_what_cannot_be_trained_is_refused_before_torch_is_imported(
    compressed: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    program = (
        "import sys; from tts_compress.cli import main; "
        "print(main(sys.argv[1:]), 'torch' in sys.modules)"
    )
    arguments = ["qat", str(compressed("int8-weight-only")), "--output", str(tmp_path / "out")]
    command = [sys.executable, "-c", program, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["2", "False"]
    assert "is already compressed (int8-weight-only); compress the original" in run.stderr


_TEXT = "Hello there."


@pytest.mark.slow
def test_the_file_and_the_samples_are_those_of_the_whole(
    tiny_path: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    whole, streamed = tmp_path / "whole.wav", tmp_path / "streamed.wav"
    assert main(["synthesize", str(tiny_path), _TEXT, "--output", str(whole), "--seed", "3"]) == 0
    command = ["stream", str(tiny_path), _TEXT, "--seed", "3", "--output"]
    assert main([*command, str(streamed)]) == 0
    expected = read_wav(whole)
    assert read_wav(streamed).sample_rate == expected.sample_rate
    assert np.array_equal(read_wav(streamed).samples, expected.samples)
    capfdbinary.readouterr()
    assert main([*command, "-"]) == 0
    samples = np.frombuffer(capfdbinary.readouterr().out, "<i2")
    assert np.abs(samples / 32767 - expected.samples).max() < 1e-4


def test_what_cannot_be_streamed_is_told_in_a_line(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.wav"
    there.write_bytes(b"kept")
    for output, more, expected in (
        (str(there), [], "--force"),
        ("-", ["--json"], "give --output a file"),
        (str(tmp_path / "new.wav"), ["--speaker", "anna"], "speaker"),
    ):
        assert main(["stream", str(tiny_path), _TEXT, "--output", output, *more]) == 2
        assert expected in capsys.readouterr().err
    assert there.read_bytes() == b"kept"
