"""Find the formats that suit a voice best, within a rise of word errors.

Examples:
    search demo --max-wer-rise 0.5 --objective size --output out/smallest
    quantize demo --recipe out/smallest/recipe.toml --output out/again
    search voice.onnx --max-wer-rise 3 --relative --objective latency --output out/f
"""

from __future__ import annotations

from argparse import Namespace

from tts_compress.cli.command import (
    GATE_FAILED,
    GOOD,
    MODEL,
    REUSED,
    Command,
    Option,
    Output,
    check_unused,
    options_from,
    required_output,
    seed,
)
from tts_compress.search.options import SearchOptions, SensitivityOptions

COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    required_output(
        "--output DIR", "for recipe, voice and page; a run into it that was interrupted goes on"
    ),
    *Option.each_of(SearchOptions),
    *Option.each_of(SensitivityOptions, "everything", "seed"),
    Option("--seed SEED", "of noise and search", type=seed, default=0),
    Option("--force", "replace an existing result"),
    failed="no voice is within the bound",
    resumes=True,
)


def run(options: Namespace) -> Output:
    """Search, and write page, recipe and voice; exit code 1 where no voice is within the bound."""
    from tts_compress.terminal import progress_bars

    check_unused(options, "search.json", "result", REUSED)
    with progress_bars() as progress:
        progress.advance("prepare", 0, 3)
        from tts_compress.search.outcome import write_result
        from tts_compress.search.search import search

        measured = options_from(options, SensitivityOptions, progress=progress)
        more = {"sensitivity": measured, "progress": progress}
        result = search(options.model, options.output, options_from(options, SearchOptions, **more))
    page = write_result(result, options.output)
    lines = [result.statement, f"page: {page}"]
    if result.chosen is not None:
        lines.append(f"recipe: {options.output / 'recipe.toml'}")
        lines.append(f"voice: {options.output / 'voice'}")
    code = GATE_FAILED if result.chosen is None else GOOD
    return Output(result.model_dump(mode="json", exclude={"points"}), lines, code)
