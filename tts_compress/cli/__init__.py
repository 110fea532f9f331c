"""The `tts-compress` command: one file per subcommand, one subcommand per stage, parsing only."""

from __future__ import annotations

from tts_compress.cli.program import main

__all__ = ["main"]
