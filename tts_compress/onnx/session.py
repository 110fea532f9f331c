"""ONNX graphs in onnxruntime: providers, sessions, and the time each operator takes.

A provider is the code of a processor, a GPU or an NPU. It computes the operators that it knows and
leaves the others to the CPU, without a word.
"""

import json
import os
import warnings
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from threading import Thread, current_thread, main_thread
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from tts_compress.errors import (
    ArtifactError,
    ModelError,
    TTSCompressWarning,
    first_line,
    nearest,
    raising,
)
from tts_compress.folders import temporary_folder
from tts_compress.onnx.modules import name_by_modules
from tts_compress.onnx.noise import NOISE_PREFIX, feed_noise

CPU = "CPUExecutionProvider"

_INSTALLED_BY = {
    CPU: "onnxruntime",
    "CUDAExecutionProvider": "onnxruntime-gpu in its place",
    "TensorrtExecutionProvider": "onnxruntime-gpu in its place, and TensorRT",
    "OpenVINOExecutionProvider": "onnxruntime-openvino in its place",
    "CoreMLExecutionProvider": "onnxruntime on macOS",
    "DmlExecutionProvider": "onnxruntime-directml in its place, on Windows",
    "XnnpackExecutionProvider": "a build of onnxruntime for Android or iOS, or one of your own",
}
"""The package that brings a provider, by onnxruntime's name of it."""

_THREADS = {
    "OpenVINOExecutionProvider": "num_of_threads",
    "XnnpackExecutionProvider": "intra_op_num_threads",
}
"""Option of a provider that has threads of its own."""

_RECORDED = "session.record_ep_graph_assignment_info"
"""Entry of a session's options by which `assigned_operators` can tell."""


def find_provider(text: str, threads: int | None = None) -> tuple[str, dict[str, str]]:
    """Return a provider and its options, as a session takes them.

    Engines that TensorRT builds, which takes minutes, are kept in the user's cache.

    Args:
        text: Name and options, such as `TensorrtExecutionProvider?trt_fp16_enable=1`.
        threads: Threads within an operator, for a provider that has threads of its own.

    Raises:
        ModelError: There is no such provider, or this onnxruntime lacks it.
    """
    name, _, query = text.partition("?")
    if name not in _INSTALLED_BY:
        raise ModelError(
            f"no provider {name!r:.60}; accepted: {', '.join(_INSTALLED_BY)}"
            f"{nearest(name, _INSTALLED_BY)}"
        )
    available = onnxruntime.get_available_providers()
    if name not in available:
        raise ModelError(
            f"onnxruntime {onnxruntime.__version__} has no {name} here, but "
            f"{', '.join(available)}; install {_INSTALLED_BY[name]}"
        )
    problem, advice = f"cannot read the options {query!r}", f"write them as '{name}?key=value&…'"
    with raising(ModelError, problem, ValueError, advice=advice):
        stated = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    defaults = {}
    if name == "TensorrtExecutionProvider":
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = str(cache / "tts-compress" / "tensorrt")
        defaults = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": folder}
    if threads is not None and name in _THREADS:
        defaults = {_THREADS[name]: str(threads)}
    return name, defaults | stated


def assigned_operators(session: onnxruntime.InferenceSession) -> Counter[tuple[str, str]]:
    """Return the numbers of operators, by provider and type; none where onnxruntime is too old."""
    if not hasattr(session, "get_provider_graph_assignment_info"):  # before 1.24
        return Counter()
    parts: list[Any] = session.get_provider_graph_assignment_info()
    return Counter((part.ep_name, node.op_type) for part in parts for node in part.get_nodes())


def fallback(operators: Counter[tuple[str, str]], name: str) -> str:
    """Return a sentence on the operators that another provider computes; empty for none."""
    others = Counter[str]()
    for (provider, kind), count in operators.items():
        if provider != name:
            others[f"{kind} ({provider})"] += count
    if not others:
        return ""
    kinds = ", ".join(f"{count} × {kind}" for kind, count in others.most_common(3))
    more = "" if len(others) <= 3 else f" and {len(others) - 3} more kinds"
    return (
        f"{others.total():,} of {operators.total():,} operators are not computed by {name}, but "
        f"fall back: {kinds}{more}; `--format qdq` makes artifacts of standard operators, which "
        "providers know"
    )


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
    provider: str = CPU,
    **options: Any,
) -> onnxruntime.InferenceSession:
    """Open a graph, on the CPU by default.

    Args:
        model: The graph, or its file.
        spec: The model spec that the user gave, for the error message.
        threads: Threads within an operator; None leaves it to the runtime.
        briefly: The graph is opened for a few runs: buffers are not planned, which takes time that
            grows with the square of the number of operators (1.2 of 1.3 s for 3,200 of them), and
            threads do not keep a core while they wait, which programs beside this one would miss.
        provider: The provider that computes what it can of it, with options, as `find_provider`
            takes it; the CPU computes the rest.
        options: More attributes of `onnxruntime.SessionOptions`, or its entries, such as
            `session.use_env_allocators`.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # its errors are raised, too, and told by us
    # Sizes differ from call to call: remembering them doubles the memory of activations.
    settings.enable_mem_pattern = False
    settings.enable_mem_reuse = not briefly
    if briefly:
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
    for key, value in options.items():
        if "." in key:
            settings.add_session_config_entry(key, value)
        else:
            setattr(settings, key, value)
    name, stated = find_provider(provider, threads)
    providers: list[Any] = [CPU]
    if name != CPU:
        settings.add_session_config_entry(_RECORDED, "1")
        providers = [(name, stated), CPU]
    source = str(model) if not hasattr(model, "SerializeToString") else model.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(source, settings, providers=providers)
    # onnxruntime's exceptions share no base class but this one.
    except Exception as error:
        if "serialization failed" in str(error):  # its only word of a disk that is full
            raise ArtifactError(
                f"cannot write the optimized graph in '{gettempdir()}': no space is left there, or "
                "files may not be as large; name another folder in TMPDIR"
            ) from error
        raise ModelError(f"onnxruntime cannot open '{spec}': {first_line(error)}") from error
    if session.get_providers()[0] != name:  # of which onnxruntime only prints a warning
        raise ModelError(
            f"onnxruntime cannot start {name} here: a library of it or a device is missing"
        )
    return session


class Sessions:
    """Opens the graphs of a model by one provider.

    Args:
        provider: As `find_provider` takes it.
        threads: Threads within an operator where nothing else is said; None leaves it to the
            runtime.
    """

    def __init__(self, provider: str = CPU, threads: int | None = None) -> None:
        find_provider(provider)  # refused before anything is opened
        self.provider, self._threads = provider, threads
        self.operators: Counter[tuple[str, str]] = Counter()
        """Operators of what was opened, by provider and type; none where that is the CPU's."""

    def open(self, source: onnx.ModelProto | Path, spec: str, **options: Any) -> Any:
        """Return a session, opened as by `open_session`; note operators, and warn of fallbacks."""
        stated = {"threads": self._threads} | options
        session = open_session(source, spec, provider=self.provider, **stated)
        if self.provider != CPU:
            operators = assigned_operators(session)
            self.operators.update(operators)
            if told := fallback(operators, self.provider.partition("?")[0]):
                warnings.warn(f"'{spec}': {told}", TTSCompressWarning, stacklevel=2)
        return session


SHARED: dict[str, Any] = {
    "session.use_env_allocators": "1",
    "session.use_device_allocator_for_initializers": "1",
}
"""Options of sessions that take turns: they compute in one arena, and weights stay out of it."""


@cache
def share_arena() -> None:
    """Give this process the arena that sessions with `SHARED` compute in.

    It doubles from 4 MB on: by what is asked for it would keep a block for each length of chunk.
    """
    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    info = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory)
    onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg(0, 0, 1 << 22, -1))


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


_ROUNDS = 3
"""Profiled runs; the fastest counts."""


def kernel_seconds(
    model: onnx.ModelProto,
    calls: Sequence[Feeds],
    spec: str,
    *,
    threads: int | None = None,
    rounds: int = 1,
) -> dict[str, float]:
    """Return the seconds that operators take over all calls, by names that hold their modules.

    Args:
        model: The graph; its noise is fed.
        calls: Inputs, with fed noise.
        spec: Its name in messages.
        threads: Threads within an operator; None leaves it to the runtime.
        rounds: Times that all calls are run after a first time that does not count; for each
            operator in each call the fastest counts.
    """
    watched = feed_noise(model)
    name_by_modules(watched.graph)
    with temporary_folder() as folder:
        options: dict[str, Any] = {"profile_file_prefix": str(Path(folder, "profile"))}
        session = open_session(watched, spec, threads, enable_profiling=True, **options)
        for call in [*calls] * (1 + rounds):
            run_session(session, call, spec)
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return _by_operator(events, len(calls))


def _by_operator(events: list[dict[str, Any]], calls: int) -> dict[str, float]:
    """Return the seconds of the kernels of a profile, without those of the first calls."""
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    spent: dict[tuple[str, int], float] = defaultdict(float)  # by operator and run
    for event in events:
        operator = event["name"].removesuffix("_kernel_time")
        run = bisect_right(starts, event["ts"]) - 1
        # Operators that feed noise stand for one operator of the voice that draws it.
        fed = operator.startswith(NOISE_PREFIX)
        if operator != event["name"] and run >= calls and not fed:
            spent[operator, run] += event["dur"] / 1e6
    fastest: dict[str, dict[int, float]] = defaultdict(dict)
    for (operator, run), seconds in spent.items():
        call = run % calls
        fastest[operator][call] = min(seconds, fastest[operator].get(call, seconds))
    return {operator: sum(seconds.values()) for operator, seconds in fastest.items()}


def group_ms(
    model: onnx.ModelProto, calls: Sequence[Feeds], groups: Sequence[str]
) -> dict[str, float]:
    """Return milliseconds of kernels on one thread by group, and of others under an empty name."""
    spent = dict.fromkeys([*groups, ""], 0.0)
    kernels = kernel_seconds(model, calls, "the graph", threads=1, rounds=_ROUNDS)
    for operator, seconds in kernels.items():
        spent[group_of(operator, groups)] += seconds * 1e3
    return spent


def group_of(operator: str, groups: Sequence[str]) -> str:
    """Return the group or component of an operator by its name; empty where there is none.

    torch names operators by scope (`/dec/ups.0/ConvTranspose`); operators around a weight are named
    after it (`voice.dec.ups.0.weight.dequantized`). The runtime keeps both in the names of
    operators that it fuses. The first group in a name counts, of several there the longest.
    """
    dotted = f".{operator.replace('/', '.')}.".replace("..", ".")
    places = {group: dotted.find(f".{group.rstrip('.*')}.") for group in groups}
    holding = [group for group in groups if places[group] >= 0]
    return min(holding, key=lambda group: (places[group], -len(group)), default="")
