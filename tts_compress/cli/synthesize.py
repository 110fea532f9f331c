"""`tts-compress synthesize`: speak a text into a WAV file."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import MODEL, Output, add_prompt, explain, path, prompted
from tts_compress.errors import ArtifactError, reason
from tts_compress.reading import MOST_AUDIO_BYTES, open_file

if TYPE_CHECKING:
    from tts_compress.models.base import TTSModel


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        'synthesize demo "Hello there." --output hello.wav',
        'synthesize out/kokoro-int8 "Hello there." --speaker af_heart --output hello.wav',
        'synthesize f5-tts:DIR "Hello." --reference me.wav --reference-text "I am." --output o.wav',
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument("text", help="what to speak")
    parser.add_argument("--output", type=path, required=True, metavar="WAV", help="new file")
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("--seed", type=int, default=0, help="of the noise (%(default)s)")
    noise.add_argument("--no-noise", action="store_true", help="speak without any")
    add_prompt(parser)
    parser.add_argument(
        "--speaker", metavar="NAME|ID", help="of a voice with several (the voice's default)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.audio import write_wav
    from tts_compress.models import load
    from tts_compress.models.speakers import choose_speaker

    _check_replaceable(options.output, force=options.force)
    model: TTSModel = prompted(load(options.model), options)
    if options.speaker is not None:
        model = choose_speaker(model, options.speaker)
    audio = model.synthesize(options.text, seed=None if options.no_noise else options.seed)
    write_wav(options.output, audio)
    path, seconds = options.output, audio.duration_s
    return Output(
        {"audio": str(path), "seconds": seconds, "sample_rate": audio.sample_rate},
        [f"{seconds:.2f} s of speech: {path}"],
    )


def _check_replaceable(path: Path, *, force: bool) -> None:
    """Refuse an output that exists; with `force` only where it is no WAV file, such as a model."""
    if not path.exists():
        return
    if not force:
        raise ArtifactError(f"'{path}' exists; use --force to replace it")
    try:
        with open_file(path, MOST_AUDIO_BYTES) as file:
            beginning = file.read(4)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot replace '{path}': {reason(error)}") from error
    if beginning not in (b"RIFF", b""):
        raise ArtifactError(f"'{path}' is no WAV file, so it is not replaced; give another output")
