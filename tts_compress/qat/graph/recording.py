"""What the tensors of a graph are while it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import helper

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import open_session, run_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    import onnx

    from tts_compress.onnx.session import Feeds

__all__ = ["record_tensors"]


def record_tensors(
    model: onnx.ModelProto, tensors: Sequence[str], calls: Iterable[Feeds]
) -> list[dict[str, npt.NDArray[Any]]]:
    """Run a graph and return the named tensors of every call; inputs of the graph may be named.

    Args:
        model: A graph in FP32; random operators read fed noise instead.
        tensors: Their names.
        calls: Inputs of the graph with fed noise.

    Raises:
        QuantizationError: There were no calls.
    """
    watched = copy_model(feed_noise(model))
    given = {value.name for value in watched.graph.input}
    made = [tensor for tensor in tensors if tensor not in given]
    known = {value.name for value in watched.graph.output}
    watched.graph.output.extend(
        helper.make_empty_tensor_value_info(tensor) for tensor in made if tensor not in known
    )
    session = open_session(watched, "the teacher")
    found = []
    for feeds in calls:
        values = run_session(session, feeds, "the teacher", made)
        found.append(
            dict(zip(made, values, strict=True)) | {n: feeds[n] for n in tensors if n in given}
        )
    if not found:
        raise QuantizationError("there was nothing to learn from; is the calibration set empty?")
    return found
