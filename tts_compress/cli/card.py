"""`tts-compress card`: write the model card of an artifact."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from tts_compress.cli.arguments import Output, explain


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        "card out/voice-int8 --report out/report --license mit --base-model owner/voice",
        "card out/voice-int8 --force",
    )
    parser.add_argument("artifact", type=Path, metavar="DIR", help="written by quantize or qat")
    parser.add_argument(
        "--report", type=Path, help="report.json of its evaluation, or the directory (no figures)"
    )
    parser.add_argument(
        "--license", metavar="ID", help="such as apache-2.0 or cc-by-4.0 (not stated)"
    )
    parser.add_argument(
        "--base-model",
        metavar="OWNER/NAME",
        help="the original on the hub (its spec's)",
    )
    parser.add_argument("--language", metavar="CODE", help="such as en (the report's)")
    parser.add_argument("--force", action="store_true", help="replace an existing README.md")


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.evaluation import read_report
    from tts_compress.publish.card import CardFacts, write_card

    facts = CardFacts(
        report=None if options.report is None else read_report(options.report),
        licence=options.license,
        base_model=options.base_model,
        language=options.language,
    )
    path = write_card(options.artifact, facts, force=options.force)
    return Output({"card": str(path)}, [f"card: {path}"])
