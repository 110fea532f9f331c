"""The command line of a benchmark: every `python -m benchmarks.NAME` is one function."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tts_compress.errors import TTSCompressError

Add = Callable[..., Any]

_BAD_USE, _INTERRUPTED = 2, 130


@dataclass(frozen=True, slots=True)
class Command:
    """A benchmark as a program; calling it returns the exit code, 2 for bad input."""

    name: str
    label: str
    options: Callable[[Add], None]
    run: Callable[[Namespace], int | None]

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the program with arguments, by default those of the command line."""
        try:
            return self.run(self.parse(arguments)) or 0
        except TTSCompressError as error:
            print(f"{self.label}: {' '.join(str(error).split())}", file=sys.stderr)
            return _BAD_USE
        except KeyboardInterrupt:
            print(f"{self.label}: interrupted; finished pieces are kept", file=sys.stderr)
            return _INTERRUPTED

    def parse(self, arguments: Sequence[str] | None) -> Namespace:
        """Return the options that arguments state."""
        parser = ArgumentParser(prog=f"python -m {self.name}", description=self.run.__doc__)
        self.options(parser.add_argument)
        return parser.parse_args(arguments)


def command(
    name: str, options: Callable[[Add], None], label: str = "bench"
) -> Callable[[Callable[[Namespace], int | None]], Command]:
    """Make a function, whose docstring is its help, a program."""
    return lambda run: Command(name, label, options, run)


def positive(text: str) -> int:
    """Return the value of an option that counts from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)
