"""`tts-compress push`: publish an artifact and its card on a hub."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from tts_compress.cli.arguments import Output, explain

_DESCRIPTION = """\
Publish an artifact and its card (`tts-compress card`) as one commit. The token is the one that
`hf auth login` stored, or HF_TOKEN; HF_ENDPOINT names another hub. Needs the extra `hub`.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = _DESCRIPTION
    explain(parser, "push out/voice-int8 me/voice-int8", "push out/voice-int8 me/draft --private")
    parser.add_argument("artifact", type=Path, metavar="DIR", help="with its card")
    parser.add_argument("repository", metavar="OWNER/NAME", help="made where there is none")
    parser.add_argument("--private", action="store_true", help="make a new one private")
    parser.add_argument(
        "--message", default="Compressed by tts-compress", help="of the commit (%(default)s)"
    )


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.publish.hub import push

    url = push(
        options.artifact, options.repository, private=options.private, message=options.message
    )
    return Output({"url": url}, [f"published: {url}"])
