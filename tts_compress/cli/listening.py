"""Join what listeners saved on the page of evaluate --listening-test.

Listeners who missed a damaged copy do not count. A difference is heard where so many right answers
have a chance of at most 5 % if everybody guesses.

Examples:
    listening results/*.json
    listening anna.json ben.json --json
"""

from argparse import Namespace

from tts_compress.cli.command import Command, Option, Output, path

COMMAND = Command(
    __doc__, Option("results", "files of one test", nargs="+", type=path, metavar="RESULTS.json")
)


def run(options: Namespace) -> Output:
    """Print what was heard, and by whom."""
    from tts_compress.evaluation.listening import join_listeners

    outcome = join_listeners(options.results)
    lines = [
        f"{score.name}: {score.right} of {score.trials} right"
        f"{'' if score.is_reliable else '; left out, missed a damaged copy'}"
        for score in outcome.listeners
    ]
    if outcome.identical:
        lines.append(f"pairs that are identical, and were not asked: {outcome.identical}")
    return Output(outcome.model_dump(mode="json"), [*lines, str(outcome)])
