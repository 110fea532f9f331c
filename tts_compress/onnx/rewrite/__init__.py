"""Exact rewrites of FP32 graphs, one file each.

Each takes a `Graph`, changes what it can prove to be equal up to rounding, and returns how often.
`rewrite` applies them in the order in which one makes room for the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.rewrite.attention import simplify_attention
from tts_compress.onnx.rewrite.layout import cancel_transposes
from tts_compress.onnx.rewrite.masks import drop_masks, single_utterance
from tts_compress.onnx.rewrite.merge import merge_pointwise
from tts_compress.onnx.rewrite.neutral import drop_neutral
from tts_compress.onnx.rewrite.normalize import fuse_normalization
from tts_compress.onnx.rewrite.padding import fold_padding
from tts_compress.onnx.rewrite.spline import simplify_splines
from tts_compress.onnx.rewrite.split import split_convolutions
from tts_compress.onnx.rewrite.upsample import expand_upsampling

if TYPE_CHECKING:
    import onnx

__all__ = [
    "REWRITES",
    "Graph",
    "cancel_transposes",
    "drop_masks",
    "drop_neutral",
    "expand_upsampling",
    "fold_padding",
    "fuse_normalization",
    "merge_pointwise",
    "rewrite",
    "simplify_attention",
    "simplify_splines",
    "single_utterance",
    "split_convolutions",
]

_SPOKEN = (single_utterance, drop_masks, simplify_attention, simplify_splines)
"""What holds where a program speaks one text at a time."""

REWRITES = (
    *_SPOKEN,
    drop_neutral,
    fold_padding,
    split_convolutions,
    merge_pointwise,
    fuse_normalization,
)
"""What helps every scheme, in order. `expand_upsampling` only pays where it leads to integers, and
`cancel_transposes` behind those."""


def rewrite(
    model: onnx.ModelProto, *, spoken: bool = True
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return an equal model and how often each rewrite applied.

    Args:
        model: A prepared graph (constants folded); it is not changed.
        spoken: The graph is a voice's, called with one text at a time; any other one may be
            called with several, and with padding.
    """
    graph = Graph(model)
    counts = {}
    for step in REWRITES:
        if spoken or step not in _SPOKEN:
            counts[step.__name__] = step(graph)
            graph.sweep()
    return graph.finish(), counts
