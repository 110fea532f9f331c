"""Print a script that completes commands and options in a shell.

Examples:
    completion bash > ~/.local/share/bash-completion/completions/tts-compress
    completion zsh > ~/.zfunc/_tts-compress
    completion fish > ~/.config/fish/completions/tts-compress.fish
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

from tts_compress.cli.command import Command, Option, Output, path

COMMAND = Command(
    __doc__, Option("shell", "for which the script is", choices=("bash", "zsh", "fish"))
)

_FILES = {"model", "reference", "candidate", "recipe", "plan", "calibration"}
"""Arguments that are often files, among others."""


def run(options: Namespace) -> Output:
    """Print the script."""
    import shtab

    whole: ArgumentParser = options.parser
    for parser in _parsers(whole):
        for action in parser._actions:  # noqa: SLF001  argparse has no other list of them
            if action.type in (Path, path) or action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(whole, options.shell)
    return Output({"shell": options.shell, "script": script}, [script])


def _parsers(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    yield parser
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, _SubParsersAction):
            for command in action.choices.values():
                yield from _parsers(command)
