"""Write the model card of an artifact.

Examples:
    card out/voice-int8 --report out/report --license mit --base-model owner/voice
    card out/voice-int8 --force
"""

from argparse import Namespace
from pathlib import Path

from tts_compress.cli.command import Command, Option, Output

COMMAND = Command(
    __doc__,
    Option("artifact DIR", "written by quantize or qat", type=Path),
    Option(
        "--report REPORT", "report.json of its evaluation, or the directory (no figures)", type=Path
    ),
    Option("--license ID", "such as apache-2.0 or cc-by-4.0 (not stated)"),
    Option("--base-model OWNER/NAME", "the original on the hub (its spec's)"),
    Option("--language CODE", "such as en (the report's)"),
    Option("--force", "replace an existing README.md"),
)


def run(options: Namespace) -> Output:
    """Write the card and print its path."""
    from tts_compress.evaluation import read_report
    from tts_compress.report.card import CardFacts, write_card

    facts = CardFacts(
        report=None if options.report is None else read_report(options.report),
        licence=options.license,
        base_model=options.base_model,
        language=options.language,
    )
    path = write_card(options.artifact, facts, force=options.force)
    return Output({"card": str(path)}, [f"card: {path}"])
