"""ONNX models: bare graphs, and what voices share with them."""

import copy
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import onnx
import onnxruntime

from tts_compress.artifact import MANIFEST_NAME, Manifest, atomic_directory, with_files
from tts_compress.errors import ModelError
from tts_compress.models.base import Component, GraphModel, GraphPart, ModelFiles, shown_model
from tts_compress.models.execution import PROCESSOR, Execution
from tts_compress.models.feeds import graph_inputs
from tts_compress.models.graph_file import SharedWeights, read_graph, shared_weights, weight_files
from tts_compress.models.streaming import Streamer
from tts_compress.onnx.chunks import joined
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.modules import WeightFinder, initializer_names, module_of, vary_weights
from tts_compress.onnx.precision import duration_outputs
from tts_compress.onnx.session import Feeds, Sessions
from tts_compress.plain import plain

Opened: TypeAlias = tuple[onnxruntime.InferenceSession, Sequence[str]]
"""A graph opened with fed noise, and the names of its outputs that are read."""


class OnnxModel:
    """An ONNX graph of which nothing is known but its inputs and outputs.

    Families whose models are graphs inherit from it.

    Args:
        path: The `.onnx` file; of a graph in memory only the name it will have.
        spec: Spec by which the user named the model.
        manifest: Record of its compression; None for an original.
        held: The graph, where it is in memory only.
    """

    family = "onnx"
    kind = "ONNX graph"
    """Noun for the file in errors."""

    folder: str | None = None
    """Folder that the graphs have in an artifact; None for none."""

    def __init__(
        self,
        path: Path,
        *,
        spec: str,
        manifest: Manifest | None = None,
        held: onnx.ModelProto | None = None,
    ) -> None:
        if held is None and not path.is_file():
            raise ModelError(f"no file '{path}'; give an existing {self.kind} (.onnx)")
        self.spec = spec
        self.manifest = manifest
        self.parts: Mapping[str, GraphPart] = self._read_parts(
            GraphPart(path=path, spec=spec, held=held)
        )
        self._opened: dict[str, Opened] = {}
        self._streamer: Streamer | None = None
        self.sessions = Sessions()

    def _read_parts(self, first: GraphPart) -> Mapping[str, GraphPart]:
        """Return the graphs, given the one of the path; a voice reads what explains them."""
        return {"": first}

    def __repr__(self) -> str:
        return shown_model(self)

    @property
    def sample_rate(self) -> int | None:
        """None: it speaks no texts."""
        return None

    @property
    def execution(self) -> Execution:
        """The provider that computes its graphs."""
        return Execution(provider=self.sessions.provider)

    def on(self, execution: Execution) -> Self:
        """Return this model computed by another provider."""
        if replace(execution, provider=PROCESSOR.provider) != PROCESSOR:
            raise ModelError(
                f"{self.spec!r} is computed by onnxruntime, which has no device of torch; give a "
                "provider, such as CUDAExecutionProvider"
            )
        return self._with(sessions=Sessions(execution.provider), _opened={}, _streamer=None)

    def graph(self, part: str = "") -> onnx.ModelProto:
        """Return a copy of a graph, its last stages in one piece."""
        return joined(self.written(part))

    def written(self, part: str) -> onnx.ModelProto:
        """Return a copy of a graph as its file has it."""
        stored = self.parts[part]
        return read_graph(stored.path) if stored.held is None else copy_model(stored.held)

    def source(self, part: str) -> Path | onnx.ModelProto:
        """Return what is opened of a graph: its file; in one piece for a provider of other loops.

        In OpenVINO 1.24 nothing comes of a loop in which a tensor grows.
        """
        path = self.parts[part].path
        if self.execution.provider == PROCESSOR.provider:
            return path
        written = self.written(part)
        whole = joined(written)
        return path if whole is written else whole

    def in_chunks(
        self, part: str, graph: onnx.ModelProto, calls: Iterable[Feeds]
    ) -> onnx.ModelProto:
        """Return a graph as it takes least memory; one that does not speak stays as it is."""
        del part, calls
        return graph

    def with_graphs(
        self,
        graphs: Mapping[str, onnx.ModelProto],
        manifest: Manifest | None,
        *,
        threads: int | None = None,
    ) -> Self:
        """Return this model with other graphs in the place of some; nothing is written."""
        sessions = Sessions(self.sessions.provider, threads) if threads else self.sessions
        return self._with(
            sessions=sessions,
            manifest=manifest,
            parts={
                name: replace(part, held=graphs.get(name, part.held))
                for name, part in self.parts.items()
            },
            _opened={name: self._opened[name] for name in self._opened.keys() - graphs.keys()},
            _streamer=None,
        )

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, by name, in the order they first appear.

        A component of the first graph is the first part of its modules' names; operators without
        one are `unnamed`. Each other graph is one component.
        """
        components = _components_of(self.graph().graph)
        for name in self.parts:
            if name:
                components[name] = _joined(name, _components_of(self.graph(name).graph))
        return components

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        model = self.graph()
        inputs = ", ".join(plain(str(expected)) for expected in graph_inputs(model).values())
        outputs = ", ".join(plain(value.name) for value in model.graph.output)
        properties = {"inputs": inputs, "outputs": outputs}
        deciding = duration_outputs(model, self.parts[""].lengths)
        initializers, weights = initializer_names(model.graph), WeightFinder(model.graph)
        modules = dict.fromkeys(
            module_of(node, initializers) or node.name
            for node in model.graph.node
            if deciding.intersection(node.output) and weights.find(node) is not None
        )
        return properties | ({"durations": ", ".join(modules)} if modules else {})

    def files(self) -> ModelFiles:
        """Return the `.onnx` files, and the files beside them that decide how they are run."""
        for part in self.parts.values():
            if part.held is not None:
                raise ModelError(f"the compressed '{part.spec}' has no file yet; call save() first")
        graphs = [part.path for part in self.parts.values()]
        beside = [file for path in graphs for file in weight_files(path) if file.is_file()]
        return ModelFiles(
            weights=tuple(dict.fromkeys([*graphs, *beside])),
            settings=tuple(self._settings().values()),
        )

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write `<name>.onnx`, the files beside it and the manifest, all or nothing."""
        target = Path(directory)
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            folder = partial / (self.folder or "")
            folder.mkdir(exist_ok=True)
            shared = shared_weights([part.path for part in self.parts.values()], folder)
            graphs = [self._write(n, folder, shared.get(p.path)) for n, p in self.parts.items()]
            for path in graphs:
                read_graph(path)  # nothing is written that cannot be read again
            for name, source in self._settings().items():
                (partial / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source, partial / name)
            for name, text in self._texts().items():
                (partial / name).write_text(text, encoding="utf-8")
            if self.manifest is not None:
                weights = (*graphs, *{weights.path for weights in shared.values()})
                names = (path.relative_to(partial).as_posix() for path in weights)
                manifest = with_files(self.manifest, partial, *names)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target

    def _with(self, **attributes: Any) -> Self:
        """Return a copy that differs in some attributes."""
        changed = copy.copy(self)
        vars(changed).update(attributes)
        return changed

    def _write(self, name: str, folder: Path, shared: SharedWeights | None) -> Path:
        """Write a graph into a folder, and return its file there."""
        part = self.parts[name]
        file = folder / part.path.name
        if shared is not None:
            shared.write(self.graph(name), file)
        elif part.held is None and not weight_files(part.path):
            shutil.copyfile(part.path, file)
        else:
            # Weights that lay in files of their own are in the one file afterwards.
            file.write_bytes(self.written(name).SerializeToString(deterministic=True))
        return file

    def _settings(self) -> Mapping[str, Path]:
        """Return the files without weights that belong to the graphs, by their names there."""
        return {}

    def _texts(self) -> Mapping[str, str]:
        """Return texts that belong to the graphs, by the names of their files."""
        return {}


def varied(model: GraphModel) -> GraphModel:
    """Return a voice with slightly other weights: another rendering where it draws no noise."""
    graphs = {name: vary_weights(model.graph(name)) for name in model.parts}
    return model.with_graphs(graphs, None)


def _components_of(graph: onnx.GraphProto) -> dict[str, Component]:
    weights = WeightFinder(graph)
    initializers = initializer_names(graph)
    operators: dict[str, Counter[str]] = {}
    tensors: dict[str, dict[str, onnx.TensorProto]] = {}
    for node in graph.node:
        stored = weights.find_all(node)
        if stored:
            name = module_of(node, initializers).split(".")[0] or "unnamed"
            operators.setdefault(name, Counter())[node.op_type] += 1
            tensors.setdefault(name, {}).update({weight.name: weight for weight in stored})
    return {
        name: Component(
            name=name,
            role="",
            parameters=sum(int(np.prod(tensor.dims)) for tensor in held.values()),
            size_bytes=sum(tensor.ByteSize() for tensor in held.values()),
            operators=operators[name],
        )
        for name, held in tensors.items()
    }


def _joined(name: str, components: Mapping[str, Component]) -> Component:
    """Return the components of a graph that follows as one."""
    return Component(
        name=name,
        role="follows",
        parameters=sum(part.parameters for part in components.values()),
        size_bytes=sum(part.size_bytes for part in components.values()),
        operators=sum((Counter(part.operators) for part in components.values()), Counter()),
    )


def open_graph(location: str, spec: str, manifest: Manifest | None) -> OnnxModel:
    """Open a bare graph, or an artifact of one."""
    return OnnxModel(artifact_graph(Path(location), manifest), spec=spec, manifest=manifest)


def artifact_graph(path: Path, manifest: Manifest | None) -> Path:
    """Return the one graph of an artifact's directory; any other path as it is."""
    if manifest is None or not path.is_dir():
        return path
    graphs = [name for name in manifest.files if name.endswith(".onnx")]
    if len(graphs) != 1:
        raise ModelError(f"'{path}' is an artifact of family {manifest.family!r}; upgrade")
    return path / graphs[0]
