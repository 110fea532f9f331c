"""Reading ONNX files that nobody vouches for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_graph"]

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


def read_graph(path: Path) -> onnx.ModelProto:
    """Return the whole model, weights included.

    Raises:
        ModelError: The file is missing, truncated or not ONNX, keeps weights outside its own
            folder, or has weights that are not finite.
    """
    try:
        model = onnx.load(path)
    except FileNotFoundError as error:
        raise ModelError(f"no file '{path}'") from error
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"'{path}' is not a readable ONNX file: {_first_line(error)}") from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"'{path}' holds no ONNX graph; is it a voice's .onnx file?")
    _check_weights(path, model)
    return model


def _check_weights(path: Path, model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type not in _FLOATS:
            continue
        try:
            values = numpy_helper.to_array(tensor)
        except ValueError as error:
            raise ModelError(f"'{path}': weight '{tensor.name}' is malformed: {error}") from error
        if not np.isfinite(values).all():
            raise ModelError(f"'{path}': weight '{tensor.name}' has values that are not finite")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
