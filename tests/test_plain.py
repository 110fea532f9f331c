"""Texts of others: nothing in them steers the terminal."""

import json
from pathlib import Path

import pytest

from tts_compress.cli import main
from tts_compress.plain import harmless, one_line, shortened
from tts_compress.terminal import show, show_json

_HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\ud800"
_SHOWN = "]0;owned[2J31mevil"


def test_controls_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    assert harmless(f"a\n{_HOSTILE}") == f"a\n{_SHOWN}"
    table = Table()
    table.add_column(_HOSTILE)
    table.add_row(_HOSTILE)
    show(_HOSTILE, table)
    assert _SHOWN in (out := capsys.readouterr().out)
    assert out == harmless(out)
    show_json({"name": _HOSTILE})
    out = capsys.readouterr().out
    assert out == harmless(out)
    assert json.loads(out) == {"name": _HOSTILE}


def test_a_long_message_keeps_its_beginning_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A text of 50 MB was echoed."""
    message = "no such thing '" + "x" * 50_000_000 + "'; give another"
    assert len(shown := shortened(message, 200)) <= 200
    assert shown.startswith("no such thing 'xxx")
    assert shown.endswith("xxx'; give another")
    assert len(one_line(message, 80)) == 80
    assert main(["inspect", "x" * 100_000]) == 2
    assert len(capsys.readouterr().err) < 3_000


def test_an_error_that_quotes_a_file_is_one_harmless_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f'version = 1\n"\\u001b[31m\\n" = {json.dumps(_HOSTILE[:-1])}', "utf-8")
    arguments = ["quantize", "demo", "--recipe", str(path), "--output", str(tmp_path / "out")]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err == harmless(err)
    assert err.count("\n") == 1
