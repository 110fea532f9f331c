"""`tts-compress completion`: print a script that completes commands and options in a shell."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

from tts_compress.cli.arguments import Output, explain

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        "completion bash > ~/.local/share/bash-completion/completions/tts-compress",
        "completion zsh > ~/.zfunc/_tts-compress",
        "completion fish > ~/.config/fish/completions/tts-compress.fish",
    )
    parser.add_argument("shell", choices=_SHELLS, help="for which the script is")


def run(options: Namespace) -> Output:
    """Run the command."""
    import shtab

    whole: ArgumentParser = options.parser
    for parser in _parsers(whole):
        for action in parser._actions:  # noqa: SLF001  argparse has no other list of them
            if action.type is Path or action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(whole, options.shell)
    return Output({"shell": options.shell, "script": script}, [script])


_FILES = {"model", "reference", "candidate", "recipe", "plan", "calibration"}
"""Arguments that are often files, among others."""


def _parsers(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    yield parser
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, _SubParsersAction):
            for command in action.choices.values():
                yield from _parsers(command)
