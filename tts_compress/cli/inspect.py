"""Show a model's components and how it was made.

Examples:
    inspect demo
    inspect out/demo-int8 --time
    inspect onnx:vocoder.onnx --json
"""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from typing import TYPE_CHECKING

from tts_compress.cli.command import MODEL, PROMPT, Command, Option, Output, prompted, streaming
from tts_compress.errors import TTSCompressError
from tts_compress.terminal import tell

if TYPE_CHECKING:
    from tts_compress.models.base import Model


COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    Option(
        "--time",
        "let it speak and show each component's share of the time "
        "(only a model of at most 100 million weights)",
        action=BooleanOptionalAction,
    ),
    Option("--stages", "show receptive field, largest tensor and weights of each stage of a voice"),
    *PROMPT,
)


def run(options: Namespace) -> Output:
    """Print the components and the history of a model."""
    from tts_compress.inspection.components import (
        cut_stages,
        inspect_model,
        inspection_tables,
        stage_table,
    )
    from tts_compress.models import open_model

    model = prompted(open_model(options.model), options)
    inspection = inspect_model(model, _shares(model, wanted=options.time))
    parts = inspection_tables(inspection)
    if options.stages:
        inspection |= cut_stages(streaming(model))
        parts.append(stage_table(inspection))
    return Output(inspection, parts)


def _shares(model: Model, *, wanted: bool | None) -> dict[str, float] | None:
    """Return shares of the time; without `--time` or `--no-time` only where that is quick."""
    from tts_compress.inspection.components import can_be_timed, is_quick, time_shares

    if wanted is False or (wanted is None and not can_be_timed(model)):
        return None
    if wanted is None and not is_quick(model):
        tell("components are not timed, because a model of this size takes long; --time times them")
        return None
    tell("the model speaks twice to time its components; --no-time leaves that out")
    try:
        return time_shares(model)
    except TTSCompressError as error:
        if wanted:
            raise
        tell(f"components are not timed: {error}")
        return None
