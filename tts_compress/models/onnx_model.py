"""ONNX models: bare graphs, and voices of one or several that speak by their contract."""

import copy
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import onnx
import onnxruntime

from tts_compress.artifact import MANIFEST_NAME, Manifest, atomic_directory, with_files
from tts_compress.audio import Audio
from tts_compress.errors import MissingExtraError, ModelError, TextError
from tts_compress.models.base import (
    Component,
    GraphPart,
    ModelFiles,
    Prompt,
    Runtime,
    Speaking,
    shown_model,
)
from tts_compress.models.contract.calling import Call, Caller, Seed
from tts_compress.models.contract.reading import Explained, Part, find_contract
from tts_compress.models.contract.schema import Contract, RecordingInput
from tts_compress.models.execution import PROCESSOR, Execution
from tts_compress.models.feeds import graph_inputs
from tts_compress.models.files import REFERENCE, find_prompt, read_header
from tts_compress.models.graph_file import (
    SharedWeights,
    read_graph,
    shared_weights,
    weight_files,
)
from tts_compress.models.speakers import find_speaker, speakers_in_turn
from tts_compress.models.streaming import (
    STREAM_NAME,
    Streamer,
    StreamRuntime,
    build_streamer,
    cut_part,
    open_stages,
    texts_to_cut_by,
)
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.modules import WeightFinder, initializer_names, module_of
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.precision import duration_outputs
from tts_compress.onnx.session import Feeds, Sessions, input_names, run_session
from tts_compress.onnx.stages import StagedGraph
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
        self.parts: Mapping[str, GraphPart] = {"": GraphPart(path=path, spec=spec, held=held)}
        self._opened: dict[str, Opened] = {}
        self._streamer: Streamer | None = None
        self.sessions = Sessions()

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
        """Return a copy of a graph."""
        stored = self.parts[part]
        return read_graph(stored.path) if stored.held is None else copy_model(stored.held)

    def with_graphs(self, graphs: Mapping[str, onnx.ModelProto], manifest: Manifest | None) -> Self:
        """Return this model with other graphs in the place of some; nothing is written."""
        return self._with(
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
            file.write_bytes(self.graph(name).SerializeToString(deterministic=True))
        return file

    def _settings(self) -> Mapping[str, Path]:
        """Return the files without weights that belong to the graphs, by their names there."""
        return {}


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


class OnnxVoice(OnnxModel):
    """One graph or several that speak by their contract, from files or compressed in memory.

    Args:
        path: The `.onnx` file of the first graph; the files that its contract names lie beside it.
        spec: Spec by which the user named the voice.
        manifest: Record of its compression; None for an original.
        held: The first graph, where it is in memory only.
    """

    family = "contract"
    kind = "voice with a contract"

    def __init__(
        self,
        path: Path,
        *,
        spec: str,
        manifest: Manifest | None = None,
        held: onnx.ModelProto | None = None,
    ) -> None:
        super().__init__(path, spec=spec, manifest=manifest, held=held)
        self._found = self._explain(path)
        first, *others = parts = self._found.parts()
        self.parts: Mapping[str, Part] = {"": replace(first, spec=spec, held=held)} | {
            part.path.stem: part for part in others if part.path != first.path
        }
        self._caller = Caller(self._found, parts)
        self.folder = self.contract.folder
        self.speakers = self._caller.speakers
        self.speaker: str | None = None
        roles = [role for part in parts for role in part.roles.values()]
        imitates = any(isinstance(role, RecordingInput) for role in roles)
        self.prompt = find_prompt(self._found.folders[-1]) if imitates else None

    def _explain(self, path: Path) -> Explained:
        """Return the contract, and the first graph as it explains it."""
        return find_contract(path)

    @property
    def contract(self) -> Contract:
        """The contract it speaks by."""
        return self._found.contract

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return int(self.contract.sample_rate)

    @property
    def language(self) -> str | None:
        """The language that the contract states."""
        return self.contract.language

    @property
    def speaking(self) -> Speaking:
        """The speaker that was chosen, the language, and the recording."""
        languages = (self.language,) if self.language else ()
        return Speaking(speaker=self.speaker, languages=languages, prompt=self.prompt)

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this voice speaking as one of its speakers, or like a recording."""
        changed: dict[str, Any] = {}
        audio = speaking.prompt.audio if speaking.prompt and self.prompt else None
        if audio is not None:
            read_header(audio)
            changed["prompt"] = Prompt(audio=audio)
        if speaking.speaker is not None:
            changed["speaker"] = find_speaker(self.speakers, speaking.speaker, self.spec)
        return self._with(**changed) if changed else self

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights; where the contract names them, in its order."""
        found = super().components()
        named = self.contract.components
        if not named:
            return found
        listed = {name: replace(found[name], role=named[name]) for name in named if name in found}
        return listed | {name: found[name] for name in self.parts if name}

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        return {
            "contract": self.contract.name,
            "tokens": self.contract.tokens.source,
            "sample rate": f"{self.sample_rate} Hz",
            "language": self.language or "not stated",
            "speakers": len(self.speakers) or 1,
            **super().describe(),
        }

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise."""
        spoken = [self._caller.speak(self._run, call) for call in self._calls(text, seed)]
        frames = self.contract.durations or ""
        durations = [s.latest[frames].reshape(-1) for s in spoken if frames in s.latest]
        samples = np.concatenate([self._caller.samples(speech) for speech in spoken])
        return Audio(
            samples=samples.astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.rint(np.concatenate(durations)).astype(np.int64) if durations else None,
        )

    def stream(self, text: str, *, seed: int | None = 0) -> Iterator[Audio]:
        """Speak a text chunk by chunk; stitched together it is what `synthesize` returns.

        Raises:
            ModelError: Most of the voice is not local in time; the operator is named.
            TextError: The text cannot be spoken.
        """
        if self._streamer is None:
            self._streamer = self._open_streamer()
        for call in self._calls(text, seed):
            for coming in self._caller.rounds(self._run, call, [len(self._caller.parts) - 1]):
                feeds = _fed(self._streamer.inputs, coming.feeds, coming.seed)
                yield from self._streamer.speak(feeds)

    def _calls(self, text: str, seed: int | None, speaker: str | None = None) -> Iterator[Call]:
        audio = None if self.prompt is None else self.prompt.audio
        return self._caller.calls(text, seed, speaker or self.speaker, audio)

    def cut(self, *, fed: bool = False) -> StagedGraph:
        """Return the graph that makes the sound, cut in time; with `fed`, noise is an input.

        Raises:
            ModelError: Most of it is not local in time; the operator is named.
        """
        name, part = [*self.parts.items()][-1]
        model = feed_noise(self.graph(name)) if fed else self.graph(name)
        calls = self.two_calls(name)
        return cut_part(part, model, calls, original=self.manifest is None)

    def two_calls(self, part: str) -> list[Feeds]:
        """Return the inputs of a graph in two calls of different lengths."""
        for texts in texts_to_cut_by(self.language):
            with suppress(TextError, MissingExtraError):
                calls = [next(self.calibration_calls([t], seed=0, part=part)) for t in texts]
                if any(calls[0][name].shape != calls[1][name].shape for name in calls[0]):
                    return calls
        raise ModelError(f"'{self.spec}' speaks no text by which it could be cut")

    def calibration_calls(
        self, texts: Iterable[str], *, seed: int, part: str = "", every: bool = False
    ) -> Iterator[Feeds]:
        """Yield what a graph is given in each round of the calls for texts, with fed noise.

        Texts go round the speakers, the first text with the first one; a speaker that was chosen
        speaks all.
        """
        # The names alone: a session opened for them would hold every weight once more.
        names = [value.name for value in feed_noise(self.graph(part)).graph.input]
        parts, path = self._caller.parts, self.parts[part].path
        positions = [place for place, other in enumerate(parts) if other.path == path]
        speakers = speakers_in_turn(self)
        for index, text in enumerate(texts):
            speaker = speakers[index % len(speakers)] if speakers else None
            for call in self._calls(text, seed + index, speaker):
                for coming in self._caller.rounds(self._run, call, positions):
                    # What has been said grows: so it is seen short and long, in few rounds.
                    told = every or parts[coming.position].table.loop is None
                    if told or not coming.step & (coming.step - 1):
                        yield _fed(names, coming.feeds, coming.seed)

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the files in onnxruntime, called as the contract states; in stages if there are."""
        if (streaming := self._player(threads)) is not None:
            return streaming
        self.files()  # which a voice in memory has none of
        opened = {
            name: (self.sessions.open(part.path, part.spec, threads=threads), part.returns)
            for name, part in self.parts.items()
        }
        return ContractRuntime(self._with(_opened=opened))

    def _run(self, position: int, feeds: Feeds, seed: Seed) -> list[Any]:
        """Run a graph with fed noise; speakers share its session."""
        part = self._caller.parts[position]
        name = next(name for name, other in self.parts.items() if other.path == part.path)
        if name not in self._opened:
            self._opened[name] = self._open(name)
        session, outputs = self._opened[name]
        fed = _fed(input_names(session), feeds, seed)
        names = part.returns if position else outputs
        return run_session(session, fed, self.parts[name].spec, names)

    def _open_stages(self, threads: int | None) -> Streamer | None:
        """Open the stages beside the voice's files, with fed noise where no threads are stated."""
        name, part = [*self.parts.items()][-1]
        path = self.parts[""].path.parent / STREAM_NAME
        is_there = self.parts[name].held is None and path.is_file()
        return (
            open_stages(part, self.sample_rate, path, threads, self.sessions.open)
            if is_there
            else None
        )

    def _player(self, threads: int) -> StreamRuntime | None:
        """Return what plays the stages beside the voice's files; None where there are none."""
        streamer = self._open_stages(threads)
        return None if streamer is None else StreamRuntime(self._with(_streamer=streamer).stream)

    def _open_streamer(self) -> Streamer:
        """Open the last graph in stages, with fed noise."""
        if (streamer := self._open_stages(None)) is not None:
            return streamer
        cut, part = self.cut(fed=True), [*self.parts.values()][-1]
        sessions = [self.sessions.open(model, part.spec) for model in cut.models]
        encoder = None if cut.encoder is None else self.sessions.open(cut.encoder, part.spec)
        return build_streamer(part, self.sample_rate, cut.stages, sessions, encoder)

    def _open(self, part: str) -> Opened:
        """Open a graph with fed noise."""
        found = self.parts[part]
        graph = feed_noise(self.graph(part))
        return self.sessions.open(graph, found.spec, briefly=True), found.returns

    def _settings(self) -> Mapping[str, Path]:
        audio = self.prompt.audio if self.prompt else None
        return self._found.files(self._caller.parts) | ({REFERENCE: audio} if audio else {})


class ContractRuntime:
    """onnxruntime on a voice's files, called as its contract states."""

    def __init__(self, voice: OnnxVoice) -> None:
        self._voice = voice

    def speak(self, text: str) -> Audio:
        """Speak a text with the graphs' own random noise, and fresh noise where it is an input."""
        return self._voice.synthesize(text, seed=int(np.random.default_rng().integers(1 << 31)))


def _fed(names: list[str], feeds: Feeds, seed: Seed) -> Feeds:
    """Return the values of a graph's inputs, by their names, with noise where it draws any."""
    return {name: feeds[name] for name in names if name in feeds} | draw_noise(names, seed=seed)
