"""The command line of a benchmark: every `python -m benchmarks.NAME` is one `Command`."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tts_compress.errors import TTSCompressError

BAD_USE, INTERRUPTED = 2, 130
"""Exit codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A benchmark as a program; calling it returns the exit code, 2 for bad input."""

    module: str
    """Its name after `python -m`."""

    summary: str
    options: Callable[[Callable[..., Any]], None]
    """States the options, given the parser's `add_argument`."""

    run: Callable[[Namespace], int]
    """Measures, reports, and returns the exit code."""

    label: str = "bench"
    """Beginning of error messages."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the program with arguments, by default those of the command line."""
        try:
            return self.run(self.parse(arguments))
        except TTSCompressError as error:
            print(f"{self.label}: {' '.join(str(error).split())}", file=sys.stderr)
            return BAD_USE
        except KeyboardInterrupt:
            print(f"{self.label}: interrupted; finished pieces are kept", file=sys.stderr)
            return INTERRUPTED

    def parse(self, arguments: Sequence[str] | None) -> Namespace:
        """Return the options that arguments state."""
        parser = ArgumentParser(prog=f"python -m {self.module}", description=self.summary)
        self.options(parser.add_argument)
        return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Return the value of an option that counts from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)
