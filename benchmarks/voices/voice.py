"""A voice that is timed, and what building one takes."""

import hashlib
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from benchmarks.sentences import Lengths, Sentence, id_sentences
from tts_compress.artifact import atomic_directory
from tts_compress.errors import MissingExtraError, ModelError
from tts_compress.models.base import GraphModel

DURATIONS = "durations"
"""Label of the held tensor of frames by token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchVoice:
    """One voice, and what the benchmark cannot know about its system."""

    name: str
    spec: Callable[[Path], str]
    """Makes the voice on first use in a folder → the spec by which it is loaded."""

    held: Callable[[onnx.GraphProto], Mapping[str, str]]
    """Tensors of the first graph that are FP32's in all when sounds are compared, by label: those
    that move everything behind them, `DURATIONS` above all. The graph may be a compressed one."""

    sentences: Callable[[GraphModel, Lengths], list[Sentence]] = id_sentences
    trained: bool = False


def built(
    graph: str,
    build: Callable[[Path], object],
    code: Sequence[str | Path],
    packages: Sequence[str],
    install: str = "",
) -> Callable[[Path], str]:
    """Return the spec of a voice whose first graph is a file in a folder that `build` fills.

    The folder is made anew when the code, in words or files, or a version of a package changes.
    `install` are arguments of `pip install --no-deps` where the packages' lists of dependencies
    name what speaking or training needs (spacy, gradio, lightning), and building does not.
    """

    def spec(work: Path) -> str:
        stated = [part.read_text("utf-8") if isinstance(part, Path) else part for part in code]
        # Networks are older than the torch that exports them, and some print.
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            try:
                asked = json.dumps([stated, [version(package) for package in packages]])
                key = hashlib.sha256(asked.encode()).hexdigest()[:12]
                folder = work / f"{Path(graph).stem}-{key}"
                if not folder.exists():
                    with atomic_directory(folder, marker="") as partial:
                        build(partial)
            except ModuleNotFoundError as error:
                if not install:
                    raise MissingExtraError(str(error.name), "torch") from error
                raise ModelError(
                    f"{graph} is built by packages of which {error.name} is not installed; run: "
                    f"pip install --no-deps {install}"
                ) from error
        return str(folder / graph)

    return spec


def export_graph(
    network: Any,
    inputs: Mapping[str, Any],
    axes: Mapping[str, Mapping[int, str]],
    path: Path,
    opset: int = 17,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Export a network; its outputs are the names that have dynamic axes and are no inputs."""
    import torch

    torch.onnx.export(
        network.eval(),
        tuple(inputs.values()),
        str(path),
        dynamo=False,
        opset_version=opset,
        input_names=[*inputs],
        output_names=[name for name in axes if name not in inputs],
        dynamic_axes=axes,
    )
    if metadata:
        graph = onnx.load(path)
        onnx.helper.set_model_props(graph, dict(metadata))
        onnx.save(graph, path)


@contextmanager
def imported_in_part(
    packages: tuple[str, ...], stand_ins: Mapping[str, Mapping[str, Any]]
) -> Iterator[Callable[[str], Any]]:
    """Yield a function that imports modules without the `__init__` of packages, which import more.

    Outer packages come first. Stand-ins are modules that are replaced, with their attributes; of
    one of the packages, what its `__init__` would define.
    """
    before = dict(sys.modules)
    try:
        for name in packages:
            _register(name, stand_ins.get(name, {}), _folder(name))
        for name in stand_ins.keys() - set(packages):
            _register(name, stand_ins[name], None)
        yield importlib.import_module
    finally:
        tops = {name.partition(".")[0] for name in (*packages, *stand_ins)}
        for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
            del sys.modules[name]
        sys.modules.update({n: m for n, m in before.items() if n.partition(".")[0] in tops})


def _register(name: str, attributes: Mapping[str, Any], folder: Path | None) -> None:
    module = ModuleType(name)
    if folder is not None:
        module.__path__ = [str(folder)]
    module.__dict__.update(attributes)
    sys.modules[name] = module


def _folder(name: str) -> Path:
    top, *inner = name.split(".")
    if top in sys.modules:
        places = sys.modules[top].__path__
    elif (spec := find_spec(top)) is None or not (places := spec.submodule_search_locations or []):
        raise ModuleNotFoundError(name=top)
    return Path(next(iter(places))).joinpath(*inner)
