"""Opening ONNX graphs in onnxruntime."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from tts_compress.errors import ModelError, first_line

_SIGNAL_S = 1.0
"""Seconds after which the main thread looks for signals where waiting does not end by them."""

_ENDING_S = 5.0
"""Seconds for the operator that runs when the others are told to end."""

Feeds = dict[str, npt.NDArray[np.generic]]
"""Real inputs of an ONNX graph, by name."""


def open_session(
    model: onnx.ModelProto | Path,
    spec: str,
    threads: int | None = None,
    *,
    briefly: bool = False,
    **options: Any,
) -> onnxruntime.InferenceSession:
    """Open a graph on the CPU.

    Args:
        model: The graph, or its file.
        spec: The model spec that the user gave, for the error message.
        threads: Threads within an operator; None leaves it to the runtime.
        briefly: The graph is opened for a few runs: buffers are not planned, which takes time that
            grows with the square of the number of operators (1.2 of 1.3 s for 3,200 of them).
        options: More attributes of `onnxruntime.SessionOptions`.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # its errors are raised, too, and told by us
    # Sizes differ from call to call: remembering them doubles the memory of activations.
    settings.enable_mem_pattern = False
    settings.enable_mem_reuse = not briefly
    if threads is not None:
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
    for name, value in options.items():
        setattr(settings, name, value)
    source = str(model) if not hasattr(model, "SerializeToString") else model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    # onnxruntime's exceptions share no base class but this one.
    except Exception as error:
        raise ModelError(f"onnxruntime cannot open '{spec}': {first_line(error)}") from error


def input_names(session: onnxruntime.InferenceSession) -> list[str]:
    """Return the names of a session's inputs."""
    return [value.name for value in session.get_inputs()]


def run_session(
    session: onnxruntime.InferenceSession,
    feeds: Mapping[str, npt.NDArray[Any]],
    spec: str,
    outputs: Sequence[str] | None = None,
) -> list[Any]:
    """Run a graph and return the named outputs; all of them where none are named.

    The main thread waits for another one that runs the graph, because onnxruntime lets no signal
    through: a loop without an end could not be interrupted.
    """
    options, results = onnxruntime.RunOptions(), Future[list[Any]]()

    def run() -> None:
        try:
            results.set_result(session.run(outputs, feeds, options))
        except BaseException as error:
            results.set_exception(error)

    if current_thread() is not main_thread():
        run()
    else:
        Thread(target=run, daemon=True).start()
        try:
            while not wait([results], _SIGNAL_S).done:
                pass
        except BaseException:
            options.terminate = True
            wait([results], _ENDING_S)
            raise
    error = results.exception()
    # onnxruntime's exceptions share no base class but this one.
    if isinstance(error, Exception):
        raise ModelError(f"'{spec}' cannot be run: {first_line(error)}") from error
    return results.result()
