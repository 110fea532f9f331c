"""The error tree is what callers catch."""

import builtins

import pytest

from tts_compress import errors

_KINDS = [n for n in vars(errors) if n.endswith("Error") and n != "TTSCompressError"]


@pytest.mark.parametrize("name", _KINDS)
def test_every_error_is_caught_by_the_root(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.TTSCompressError)


@pytest.mark.parametrize("name", _KINDS)
def test_every_error_is_in_the_drawing(name: str) -> None:
    assert name in str(errors.__doc__)


def test_no_error_shadows_a_builtin() -> None:
    assert not set(_KINDS) & set(dir(builtins))


def test_missing_extra_names_the_line_that_installs_it() -> None:
    error = errors.MissingExtraError("torch", "torch")
    assert str(error) == (
        "'torch' is not installed; install it with: pip install 'tts-compress[torch]'"
    )


def test_missing_packages_that_bring_too_much_are_installed_without_what_they_ask_for() -> None:
    message = str(errors.MissingExtraError("f5_tts", "f5"))
    assert message.endswith(
        "pip install 'tts-compress[f5]' && pip install --no-deps f5-tts vocos encodec"
    )


def test_message_of_another_package_is_one_line() -> None:
    error = RuntimeError("\n the shapes differ:\n  [1] and\t[2]\n")
    assert errors.reason(error) == "the shapes differ: [1] and [2]"
    assert errors.first_line(error) == "the shapes differ:"
    assert len(errors.reason(RuntimeError("long " * 1000))) == 300


def test_error_without_message_is_quoted_by_its_type() -> None:
    for quote in (errors.reason, errors.first_line):
        assert quote(KeyError()) == "KeyError()"
