"""`tts-compress synthesize`: speak a text into a WAV file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GOOD, add_checkout, add_json, add_prompt, prompted
from tts_compress.errors import ArtifactError
from tts_compress.families import model_specs

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("synthesize", help="speak a text into a WAV file")
    parser.add_argument("model", help=model_specs())
    parser.add_argument("text")
    parser.add_argument("--output", type=Path, required=True, metavar="WAV")
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("--seed", type=int, default=0, help="of the noise (%(default)s)")
    noise.add_argument("--no-noise", action="store_true", help="speak without any")
    add_prompt(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_checkout(parser)
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.audio import write_wav
    from tts_compress.models import load
    from tts_compress.terminal import show, show_json

    if options.output.exists() and not options.force:
        raise ArtifactError(f"'{options.output}' exists; use --force to replace it")
    model = prompted(load(options.model), options)
    audio = model.synthesize(options.text, seed=None if options.no_noise else options.seed)
    write_wav(options.output, audio)
    if options.json:
        show_json(
            {
                "audio": str(options.output),
                "seconds": audio.duration_s,
                "sample_rate": audio.sample_rate,
            }
        )
    else:
        show(f"{audio.duration_s:.2f} s of speech: {options.output}")
    return GOOD
