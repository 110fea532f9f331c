"""Publish an artifact and its card on a hub.

They become one commit; `tts-compress card` writes the card. The token is the one that
`hf auth login` stored, or HF_TOKEN; HF_ENDPOINT names another hub. Needs the extra `hub`.

Examples:
    push out/voice-int8 me/voice-int8
    push out/voice-int8 me/draft --private
"""

from argparse import Namespace
from pathlib import Path

from tts_compress.cli.command import Command, Option, Output

COMMAND = Command(
    __doc__,
    Option("artifact DIR", "with its card", type=Path),
    Option("repository OWNER/NAME", "made where there is none"),
    Option("--private", "make a new one private"),
    Option("--message MESSAGE", "of the commit", default="Compressed by tts-compress"),
)


def run(options: Namespace) -> Output:
    """Upload the artifact and print its address."""
    from tts_compress.report.card import push

    url = push(
        options.artifact, options.repository, private=options.private, message=options.message
    )
    return Output({"url": url}, [f"published: {url}"])
