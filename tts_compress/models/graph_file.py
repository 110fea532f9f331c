"""ONNX files that nothing trusts: read within bounds, with their weights checked."""

from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from tts_compress.errors import ModelError, reason
from tts_compress.reading import MOST_MODEL_BYTES, check_file, read_bytes

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


def read_graph(path: Path) -> onnx.ModelProto:
    """Read an untrusted ONNX file, weights included.

    Raises:
        ModelError: The file is missing, too large, truncated or not ONNX, keeps weights outside
            its own folder, has weights that are not finite, or returns nothing.
    """
    model = read_structure(path)
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"'{path}' holds no ONNX graph; is it a voice's .onnx file?")
    if not model.graph.output:
        raise ModelError(f"'{path}' has a graph without outputs, which computes nothing")
    try:
        _check_external(path, model)
        load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"'{path}' is not a readable ONNX file: {reason(error)}") from error
    for tensor in model.graph.initializer:
        problem = _problem(tensor)
        if problem is not None:
            raise ModelError(f"'{path}': weight '{tensor.name}' {problem}")
    return model


def read_structure(path: Path) -> onnx.ModelProto:
    """Read an ONNX file without the weights that are in other files.

    Raises:
        ModelError: The file is missing, too large, or not ONNX.
    """
    try:
        return onnx.load_model_from_string(read_bytes(path, MOST_MODEL_BYTES))
    except FileNotFoundError as error:
        raise ModelError(f"no file '{path}'") from error
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(f"'{path}' is not a readable ONNX file: {reason(error)}") from error


def is_split(path: Path) -> bool:
    """Return True if an ONNX file keeps weights in other files.

    Raises:
        ModelError: The file is missing or too large.
    """
    try:
        model = onnx.load_model_from_string(read_bytes(path, MOST_MODEL_BYTES))
    except DecodeError:
        return False  # not ONNX; copying loses nothing
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' is not a readable ONNX file: {reason(error)}") from error
    return any(uses_external_data(tensor) for tensor in model.graph.initializer)


def _check_external(path: Path, model: onnx.ModelProto) -> None:
    """Refuse files of weights that are no regular ones, or that give more than a model can hold."""
    total = 0
    for tensor in model.graph.initializer:
        stated = {entry.key: entry.value for entry in tensor.external_data}
        if not uses_external_data(tensor) or "location" not in stated:
            continue
        file = path.parent / stated["location"]
        if not file.exists():
            continue  # onnx names it
        check_file(file, MOST_MODEL_BYTES)
        length, offset = (int(stated.get(key) or 0) for key in ("length", "offset"))
        total += length or max(file.stat().st_size - offset, 0)
        if total > MOST_MODEL_BYTES:
            raise ValueError(f"its weights have more than {MOST_MODEL_BYTES} bytes")


def _problem(tensor: onnx.TensorProto) -> str | None:
    """Return what is wrong with a weight, or None."""
    try:
        values = numpy_helper.to_array(tensor)
    # A type that there is none of, and shapes that do not fit the content.
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        return f"is malformed: {reason(error)}"
    if tensor.data_type in _FLOATS and not np.isfinite(values).all():
        return "has values that are not finite"
    return None
