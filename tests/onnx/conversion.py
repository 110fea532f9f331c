"""Graphs that are prepared by a recipe, and calls of them."""

from collections.abc import Callable

import onnx

from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import Conversion, prepare_conversion
from tts_compress.onnx.session import Feeds
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import Recipe


def make_calls(call: Callable[[int], Feeds], count: int = 8) -> Calls:
    """Return calls whose inputs follow from their numbers."""
    return Calls(feeds=lambda: map(call, range(count)), total=count)


def prepared(
    model: onnx.ModelProto, recipe: Recipe, calls: Calls, *, batch_one: bool = True
) -> Conversion:
    """Return a graph with all that its conversion takes; the given one stays as it is."""
    return prepare_conversion(
        lambda: copy_model(model), recipe, calls, batch_one=batch_one, progress=Silent()
    )
