"""What is told of errors of other packages."""

from __future__ import annotations

from tts_compress.upstream_errors import first_line, reason


def test_an_error_is_told_in_one_line() -> None:
    error = RuntimeError("\n the shapes differ:\n  [1] and\t[2]\n")
    assert reason(error) == "the shapes differ: [1] and [2]"
    assert first_line(error) == "the shapes differ:"
    assert len(reason(RuntimeError("long " * 1000))) == 300


def test_an_error_without_words_is_told_by_its_kind() -> None:
    for tell in (reason, first_line):
        assert tell(KeyError()) == "KeyError()"
