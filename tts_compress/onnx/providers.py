"""Providers of onnxruntime: the code of a processor, a GPU or an NPU that computes a graph.

A provider takes the operators that it knows and leaves the others to the CPU, without a word.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl

import onnxruntime

from tts_compress.errors import ModelError, nearest, raising

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

RECORDED = "session.record_ep_graph_assignment_info"
"""Entry of a session's options by which `assigned_operators` can tell."""


class Provider(NamedTuple):
    """A provider with its options."""

    name: str
    options: dict[str, str]

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the one that a text states, such as `TensorrtExecutionProvider?trt_fp16_enable=1`.

        Engines that TensorRT builds, which takes minutes, are kept in the user's cache.

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
        problem, advice = (
            f"cannot read the options {query!r}",
            f"write them as '{name}?key=value&…'",
        )
        with raising(ModelError, problem, ValueError, advice=advice):
            stated = dict(parse_qsl(query, strict_parsing=True)) if query else {}
        if name == "TensorrtExecutionProvider":
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            folder = str(cache / "tts-compress" / "tensorrt")
            defaults = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": folder}
            stated = defaults | stated
        return cls(name, stated)

    def settings(self, threads: int | None) -> tuple[str, dict[str, str]]:
        """Return it as a session takes it."""
        option = _THREADS.get(self.name)
        threaded = {} if threads is None or option is None else {option: str(threads)}
        return self.name, threaded | self.options


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
