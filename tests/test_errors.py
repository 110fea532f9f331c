"""The error tree is what callers catch."""

import builtins
import json
import math
from pathlib import Path

import pytest

from tts_compress import errors
from tts_compress.cli import main
from tts_compress.plain import harmless, one_line, shortened
from tts_compress.terminal import show, show_json

_KINDS = [n for n in vars(errors) if n.endswith("Error") and n != "TTSCompressError"]


@pytest.mark.parametrize("name", _KINDS)
def test_every_error_is_caught_by_the_root_and_in_the_drawing(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.TTSCompressError)
    assert name in str(errors.__doc__)
    assert not hasattr(builtins, name)


def test_missing_extra_names_the_line_that_installs_it() -> None:
    """Packages that bring too much are installed without what they ask for."""
    assert str(errors.MissingExtraError("torch", "torch")) == (
        "'torch' is not installed; install it with: pip install 'tts-compress[torch]'"
    )
    assert str(errors.MissingExtraError("f5_tts", "f5")).endswith(
        "pip install 'tts-compress[f5]' && pip install --no-deps f5-tts vocos encodec"
    )


def test_message_of_another_package_is_one_line() -> None:
    error = RuntimeError("\n the shapes differ:\n  [1] and\t[2]\n")
    assert errors.reason(error) == "the shapes differ: [1] and [2]"
    assert errors.first_line(error) == "the shapes differ:"
    assert len(errors.reason(RuntimeError("long " * 1000))) == 300
    assert errors.reason(KeyError()) == errors.first_line(KeyError()) == "KeyError()"


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
    show_json({"distances": (math.inf, math.nan, 0.5)})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "distances": ["Infinity", "NaN", 0.5]
    }


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
