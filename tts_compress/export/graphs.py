"""Graphs of torch modules: traced, checked and written, and called in a module's place."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import torch
from torch import nn

from tts_compress.artifact import atomic_file
from tts_compress.errors import ModelError, first_line
from tts_compress.onnx.session import open_session, run_session
from tts_compress.torch.layers.module_surgery import (
    copy_sharing_tensors,
    fold_weight_norm,
    intercepted,
)
from tts_compress.torch.tracing import Axes, trace

OPSET = 17
"""The first with layer normalisation as one operator."""


def write_graph(
    module: nn.Module, examples: tuple[torch.Tensor, ...], inputs: Axes, outputs: Axes, path: Path
) -> Path:
    """Write a module as an ONNX graph of opset 17, and return the path.

    Arguments but the `.onnx` file's path are those of `trace`.
    """
    try:
        graph = trace(module, examples, inputs, outputs, OPSET)
        onnx.checker.check_model(graph)
    except Exception as error:
        kind = type(module).__name__
        raise ModelError(f"{kind} cannot be exported to ONNX: {first_line(error)}") from error
    with atomic_file(path) as partial:
        partial.write_bytes(graph)
    return path


def observed(
    module: nn.Module, method: str, see: Callable[..., None]
) -> AbstractContextManager[None]:
    """Call `see` with the arguments of a module's method before each call in the block."""

    def call(official: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        see(*arguments, **keywords)
        return official(*arguments, **keywords)

    return intercepted(module, method, call)


def copy_shell(module: nn.Module) -> nn.Module:
    """Return a copy in `eval` mode with weight norm folded; all other tensors are shared."""
    shell = copy_sharing_tensors(module).eval()
    fold_weight_norm(shell)
    return shell


class OnnxModule(nn.Module):
    """A graph that is called like a module; it runs on the CPU and has no gradients.

    Args:
        path: The `.onnx` file.
        threads: Threads within an operator; None leaves it to the runtime.
    """

    def __init__(self, path: Path | str, *, threads: int | None = None) -> None:
        super().__init__()
        self.path = Path(path)
        self.threads = threads
        self._open()

    def forward(self, *tensors: torch.Tensor, **named: torch.Tensor) -> Any:
        """Return the graph's output, or a tuple where it has several.

        Args:
            tensors: Inputs in the graph's order; other types are converted.
            named: Further inputs by name.
        """
        inputs = dict(zip(self._inputs, tensors, strict=False)) | named
        if len(tensors) > len(self._inputs) or inputs.keys() != self._inputs.keys():
            raise ModelError(
                f"'{self.path.name}' was given {len(tensors)} tensors and "
                f"{', '.join(named) or 'none'} by name; it wants {', '.join(self._inputs)}"
            )
        device = next(iter(inputs.values())).device
        feeds = {
            name: inputs[name].detach().to("cpu", kind).contiguous().numpy()
            for name, kind in self._inputs.items()
        }
        results = run_session(self._session, feeds, str(self.path))
        outputs = tuple(torch.from_numpy(result).to(device) for result in results)
        return outputs[0] if len(outputs) == 1 else outputs

    def __getstate__(self) -> dict[str, Any]:
        # A session can be neither copied nor pickled; its file can be opened again.
        return {k: v for k, v in self.__dict__.items() if k not in {"_session", "_inputs"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None:
        if not self.path.is_file():
            raise ModelError(f"no file '{self.path}'; give an existing ONNX graph (.onnx)")
        self._session = open_session(self.path, str(self.path), self.threads)
        self._inputs = {}
        for value in self._session.get_inputs():
            kind = getattr(torch, value.type.removeprefix("tensor(").removesuffix(")"), None)
            if not isinstance(kind, torch.dtype):
                raise ModelError(
                    f"input '{value.name}' of '{self.path}' is a {value.type}; accepted are "
                    "tensors of numbers"
                )
            self._inputs[value.name] = kind


class OnnxVocos(OnnxModule):
    """An exported Vocos with the interface of the official object."""

    def decode(self, features_input: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return audio (B, samples) of mel (B, C, T)."""
        audio: torch.Tensor = self(features_input)
        return audio


class OnnxDac(OnnxModule):
    """An exported codec decoder with the interface of the official object; it cannot encode.

    Args:
        path: The `.onnx` file.
        like: The official object it replaces, for its configuration.
        threads: Threads within an operator; None leaves it to the runtime.
    """

    def __init__(self, path: Path | str, *, like: Any = None, threads: int | None = None) -> None:
        super().__init__(path, threads=threads)
        self.config: Any = getattr(like, "config", None)
        decode = inspect.signature(like.decode).parameters if like is not None else {}
        self.wrapped = "audio_scales" in decode

    def decode(
        self,
        audio_codes: torch.Tensor,
        audio_scales: Any = None,  # noqa: ARG002  by which callers recognise the wrapper
        **_: Any,
    ) -> SimpleNamespace:
        """Return the `audio_values` (B, samples), or the wrapper's (B, 1, samples).

        Args:
            audio_codes: Codes (B, K, T), or the wrapper's (1, B, K, T).
            audio_scales: Ignored, as by the wrapper.
        """
        codes = audio_codes[0] if audio_codes.ndim == 4 and len(audio_codes) == 1 else audio_codes
        if codes.ndim != 3:
            raise ModelError(
                f"codes have shape {list(audio_codes.shape)}; give (B, codebooks, frames)"
            )
        audio: torch.Tensor = self(codes)
        return SimpleNamespace(audio_values=audio[:, None] if self.wrapped else audio)
