"""What the commands have in common: names of models, options, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tts_compress.families import MODEL_SPECS

if TYPE_CHECKING:
    import argparse

__all__ = [
    "ANY_MODEL",
    "BAD_USE",
    "GATE_FAILED",
    "GOOD",
    "INTERRUPTED",
    "MODEL",
    "Commands",
    "add_checkout",
    "add_json",
]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  no public name

GOOD = 0
GATE_FAILED = 1
BAD_USE = 2
INTERRUPTED = 130

MODEL = MODEL_SPECS
ANY_MODEL = f"{MODEL_SPECS}; of any other graph 'onnx:PATH'"


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let a command answer machines."""
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def add_checkout(parser: argparse.ArgumentParser) -> None:
    """Let a command be told where the clone of a system is that runs from one."""
    parser.add_argument(
        "--checkout",
        type=Path,
        metavar="DIR",
        help="your clone of GPT-SoVITS or Amphion, for models of these systems",
    )
