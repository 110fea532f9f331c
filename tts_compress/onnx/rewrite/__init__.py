"""Exact rewrites of FP32 graphs.

Each takes a `Graph`, makes changes that are equal up to rounding, and returns how many.
`rewrite` applies them in the order in which one makes room for the next.
"""

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.rewrite.attention import simplify_attention
from tts_compress.onnx.rewrite.convolutions import (
    fold_cropping,
    fold_padding,
    merge_pointwise,
    split_convolutions,
)
from tts_compress.onnx.rewrite.curves import simplify_snakes, simplify_splines
from tts_compress.onnx.rewrite.eliminate_identity import (
    drop_masks,
    eliminate_identity,
    single_utterance,
)
from tts_compress.onnx.rewrite.normalization import fold_affine, fuse_normalization
from tts_compress.onnx.rewrite.plain_forms import (
    flatten_convolutions,
    state_padding,
    unify_activations,
)

__all__ = ["REWRITES", "drop_neutral", "rewrite"]

_BATCH_ONE = (single_utterance, drop_masks, simplify_attention, simplify_splines, fold_affine)
"""Rewrites that are exact where a program speaks one text at a time."""

REWRITES = (
    state_padding,
    fold_padding,
    unify_activations,
    flatten_convolutions,
    *_BATCH_ONE,
    eliminate_identity,
    fold_cropping,
    split_convolutions,
    merge_pointwise,
    fuse_normalization,
    simplify_snakes,
)
"""Rewrites that help every scheme, in order; `cancel_transposes` only pays behind integers."""


def rewrite(graph: Graph, *, batch_one: bool = True) -> dict[str, int]:
    """Rewrite a graph into an equal one; return how often each rewrite applied.

    Args:
        graph: A prepared graph (constants folded); finished and typed again afterwards.
        batch_one: The graph is a voice's, called with one text at a time; any other one may be
            called with several, and with padding.
    """
    counts = {}
    for step in REWRITES:
        if batch_one or step not in _BATCH_ONE:
            counts[step.__name__] = step(graph)
            graph.sweep()
    graph.infer_types()
    return counts


def drop_neutral(graph: Graph) -> None:
    """Drop masks, zeros and ones that change nothing where one text is spoken at a time."""
    for step in (single_utterance, drop_masks, eliminate_identity):
        step(graph)
        graph.sweep()
