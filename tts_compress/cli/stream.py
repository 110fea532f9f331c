"""Speak a text chunk by chunk, so that it is heard at once.

Examples:
    stream demo "Hello there." --output hello.wav
    stream out/demo-stream "Hello there." --output - > samples.s16

A folder that `export --stream` wrote is opened sooner than a voice that has to be cut.
"""

import sys
from argparse import Namespace
from pathlib import Path

from tts_compress.cli.command import MODEL, Command, Option, Output, check_wav, seed, streaming
from tts_compress.errors import ModelError

COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    Option("text", "what to speak"),
    Option("--output WAV", "new file; - is standard output: plain samples, 16 bits", required=True),
    Option("--seed SEED", "of the noise", type=seed, default=0),
    Option("--speaker NAME|ID", "of a voice with several (the voice's default)"),
    Option("--force", "replace an existing file"),
)


def run(options: Namespace) -> Output:
    """Write the speech while it is made."""
    from tts_compress.audio import write_wav
    from tts_compress.models import load
    from tts_compress.models.base import Speaking
    from tts_compress.models.streaming import joined

    path = Path(options.output)
    if options.output != "-":
        check_wav(path, force=options.force)
    elif options.json:
        raise ModelError("standard output takes samples or JSON; give --output a file for JSON")
    voice = streaming(load(options.model)).speaking_as(Speaking(speaker=options.speaker))
    chunks = voice.stream(options.text, seed=options.seed)
    if options.output != "-":
        write_wav(path, joined(chunks))
        return Output({"audio": options.output}, [f"speech: {options.output}"])
    for chunk in chunks:
        sys.stdout.buffer.write((chunk.samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
        sys.stdout.buffer.flush()
    return Output({}, [])
