"""Speak a text into a WAV file.

Examples:
    synthesize demo "Hello there." --output hello.wav
    synthesize out/kokoro-int8 "Hello there." --speaker af_heart --output hello.wav
    synthesize f5-tts:DIR "Hello." --reference me.wav --reference-text "I am." --output o.wav
"""

from argparse import Namespace
from typing import TYPE_CHECKING

from tts_compress.cli.command import (
    EXECUTION,
    MODEL,
    PROMPT,
    Command,
    Option,
    Output,
    check_wav,
    options_from,
    prompted,
    required_output,
    seed,
)

if TYPE_CHECKING:
    from tts_compress.models.base import TTSModel


COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    Option("text", "what to speak"),
    required_output("--output WAV", "new file"),
    (
        Option("--seed SEED", "of the noise", type=seed, default=0),
        Option("--no-noise", "speak without any"),
    ),
    *PROMPT,
    Option("--speaker NAME|ID", "of a voice with several (the voice's default)"),
    *EXECUTION,
    Option("--force", "replace an existing file"),
)


def run(options: Namespace) -> Output:
    """Write the speech."""
    from tts_compress.audio import write_wav
    from tts_compress.models import load
    from tts_compress.models.base import Speaking
    from tts_compress.models.execution import Execution

    check_wav(options.output, force=options.force)
    execution = options_from(options, Execution).stated()
    model: TTSModel = prompted(load(options.model, **execution), options)
    model = model.speaking_as(Speaking(speaker=options.speaker))
    audio = model.synthesize(options.text, seed=None if options.no_noise else options.seed)
    write_wav(options.output, audio)
    path, seconds = options.output, audio.duration_s
    return Output(
        {"audio": str(path), "seconds": seconds, "sample_rate": audio.sample_rate},
        [f"{seconds:.2f} s of speech: {path}"],
    )
