"""The base of every family that runs in torch, and the form in which its models are saved.

A new one brings a class of its files (`SourceFiles`), one of what is in memory (`Loaded`; where
components are children of the official object, `LoadedRoot`), its `Options`, and a
`TorchFamilyModel` that states how it is read, how it speaks and what it writes. Its package's
`FAMILY` registers it (`tts_compress/families.py`).
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from torch import Tensor, nn
from torch.nn.utils import parametrize

from tts_compress.artifact import (
    MANIFEST_NAME,
    LayerRecord,
    Manifest,
    atomic_directory,
    read_manifest,
    with_files,
)
from tts_compress.audio import Audio
from tts_compress.errors import ModelError
from tts_compress.families import families
from tts_compress.models.base import (
    Component,
    ModelFiles,
    Objective,
    Prompt,
    Runtime,
    Speaking,
    shown_model,
)
from tts_compress.models.execution import PROCESSOR, Execution
from tts_compress.models.files import REFERENCE, REFERENCE_TEXT
from tts_compress.models.options import split_location
from tts_compress.models.speakers import NO_SPEAKERS
from tts_compress.models.torch_noise import paired_noise
from tts_compress.torch.devices import find_device, moved, set_precision
from tts_compress.torch.layers.base import CompressedLayer, walk_layers
from tts_compress.torch.layers.geometry import Geometry, operator_of, weights_of

WEIGHTS = "model.safetensors"
"""The file of a saved model with the weights of all components."""


class SourceFiles(Protocol):
    """A model's files, upstream's own or saved ones."""

    @property
    def options(self) -> Any:
        """Inference options, unless its spec states others."""

    @property
    def prompt(self) -> Prompt:
        """The prompt that lies beside the weights."""

    def files(self) -> ModelFiles:
        """Return the model's files on disk."""


class Loaded(Protocol):
    """A model in memory: upstream's own objects."""

    @property
    def root(self) -> nn.Module:
        """A module with every component as a child, under its name: the live ones."""

    def with_root(self, root: nn.Module) -> Self:
        """Return the same with other components; the given one stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRoot:
    """A model in memory whose components are children of the official object itself."""

    root: nn.Module
    """The official object."""

    tokenizer: Callable[[], Any] = lambda: None
    """Returns the official tokenizer, or two, read at the first call: `inspect` needs none."""

    def with_root(self, root: nn.Module) -> Self:
        """Return another official object with the same tokenizer."""
        return replace(self, root=root)


SourceT = TypeVar("SourceT", bound=SourceFiles)
OptionsT = TypeVar("OptionsT")
LoadedT = TypeVar("LoadedT", bound=Loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A tensor of a module that a file need not hold, because upstream's settings determine it."""

    path: str
    """Dotted name of the module."""

    module: nn.Module

    name: str
    """The module's attribute that is the tensor."""

    computed: Tensor
    """Its value, computed from the settings."""

    is_used: bool = True
    """False for what only training reads: its values are dropped, whatever they are."""

    def drop(self) -> None:
        """Keep it out of what a file gets, in place, unless the model changed it."""
        if not self.is_used or getattr(self.module, self.name).cpu().equal(self.computed):
            self.fill()

    def fill(self) -> None:
        """Give the module the computed tensor, as a buffer that no file holds, in place."""
        delattr(self.module, self.name)
        self.module.register_buffer(self.name, self.computed, persistent=False)


# No slots, for families cache what they derive; and no comparison or text of whole models.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TorchFamilyModel(ABC, Generic[SourceT, OptionsT, LoadedT]):
    """A model of a system whose own code speaks in torch; the base class of each family's.

    Models that differ in prompt or options share what is in memory.
    """

    family: ClassVar[str]
    """Name of its `FAMILY`."""

    roles: ClassVar[Mapping[str, str]]
    """Role of each component, by its name below `root()`, in the order data flows."""

    example: ClassVar[str] = ""
    """Options behind a location, for errors; empty for a family whose specs have none."""

    find: ClassVar[Callable[[str], Any]]
    """Returns the `source` at a place, for `open`."""

    read: ClassVar[Callable[[Any, Sequence[LayerRecord]], Any]]
    """Reads what is in memory of a source and the decisions for its layers, for `open`."""

    tables: ClassVar[Callable[[nn.Module], Iterable[Table]]] = lambda _: ()
    """Yields the tensors that a compressed model's file does not hold unless they differ."""

    check_recording: ClassVar[Callable[[Path], None]]
    """Refuses a recording that the system cannot speak by; of families that speak by one."""

    spec: str
    """The model spec that the user gave."""

    source: SourceT
    """The files it is read from."""

    options: OptionsT
    """Inference options."""

    prompt: Prompt
    """Its input besides the text, such as a reference recording."""

    load: Callable[[], LoadedT]
    """Returns the model in memory, read at the first call."""

    manifest: Manifest | None = None
    """Record of its compression; None for an original."""

    is_on_disk: bool = True
    """True if the files hold what is in memory."""

    execution: Execution = PROCESSOR
    """The device that its tensors lie on, and the precision of products there."""

    @classmethod
    def open(cls, location: str, spec: str, manifest: Manifest | None = None) -> Self:
        """Return the model at a location; weights are read when they are first needed.

        Arguments are those of a family's `opener`; options may follow the location and a question
        mark.
        """
        source_location, options = (
            split_location(location, cls.example) if cls.example else (location, {})
        )
        manifest = manifest or find_manifest(Path(source_location), cls.family)
        source = cls.find(source_location)
        return cls(
            spec=spec,
            source=source,
            options=source.options.changed(options, repr(spec)) if options else source.options,
            prompt=source.prompt,
            load=cache(lambda: cls.read(source, () if manifest is None else manifest.layers)),
            manifest=manifest,
        )

    def __repr__(self) -> str:
        return shown_model(self)

    @property
    def speakers(self) -> Mapping[str, int]:
        """Ids of speakers to choose from: none where the prompt gives the voice."""
        return NO_SPEAKERS

    @property
    def speaking(self) -> Speaking:
        """The prompt."""
        return Speaking(prompt=self.prompt)

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this model speaking by another prompt."""
        if speaking.speaker is not None:
            raise ModelError(f"'{self.spec}' has no speakers to choose from; leave the speaker out")
        return self if speaking.prompt is None else self.with_prompt(speaking.prompt)

    def objectives(self) -> tuple[Objective, ...]:
        """Return the objectives of training, in the order data flows; none by default."""
        return ()

    def named_calls(self) -> Mapping[str, tuple[str, ...]]:
        """Return the methods that upstream calls on components; by default `forward` alone."""
        return {}

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Samples per second of its audio, Hz."""

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""

    @abstractmethod
    def _speech(self) -> Runtime:
        """Return upstream's inference code around the model, ready to speak by its prompt.

        Raises:
            ModelError: Something it needs to speak is missing or cannot be read.
        """

    @abstractmethod
    def _write(self, directory: Path) -> None:
        """Write all that a saved model is opened from, except its weights and manifest.

        The manifest is written afterwards, and names every file that is there then.
        """

    @property
    def layers(self) -> tuple[LayerRecord, ...]:
        """Records of the decisions for its layers; empty for an original."""
        return () if self.manifest is None else self.manifest.layers

    @property
    def loaded(self) -> LoadedT:
        """The model in memory, read at the first access.

        Raises:
            ModelError: The files cannot be read or do not fit each other, or no clone is named.
            ArtifactError: A saved model's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        try:
            return self.load()
        except ImportError as error:
            raise families()[self.family].missing(error) from error

    def root(self) -> nn.Module:
        """Return the module that holds every component as a child; they are the live ones."""
        return self.loaded.root

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        return find_components(self.root(), self.roles, self.layers)

    def with_root(self, root: nn.Module, manifest: Manifest | None) -> Self:
        """Return this model with other components in upstream's object; nothing is written."""
        changed = self.loaded.with_root(root)
        return replace(self, manifest=manifest, load=lambda: changed, is_on_disk=False)

    def on(self, execution: Execution) -> Self:
        """Return this model on another device; precision is set for the whole process."""
        if execution.provider != PROCESSOR.provider:
            raise ModelError(f"{self.spec!r} runs in torch, without a provider; give a device")
        device = find_device(execution.device)
        set_precision(execution.matmul_precision, device)
        # Read anew where it was read from files: nobody else holds those tensors then.
        read = getattr(self.load, "__wrapped__", self.load)

        def load() -> LoadedT:
            loaded: LoadedT = read()
            return loaded.with_root(moved(loaded.root, device))

        return replace(self, execution=replace(execution, device=str(device)), load=cache(load))

    def with_options(self, options: OptionsT) -> Self:
        """Return this model run in another way."""
        return replace(self, options=options)

    def with_prompt(self, prompt: Prompt) -> Self:
        """Return this model with another recording, without the former text, or another text."""
        changed = self.prompt
        if prompt.audio is not None:
            type(self).check_recording(prompt.audio)
            changed = Prompt(audio=prompt.audio)
        if prompt.text is not None:
            changed = replace(changed, text=prompt.text.strip() or None)
        return replace(self, prompt=changed)

    def _recording(self) -> Path:
        """Return the recording to speak by."""
        if self.prompt.audio is None:
            raise ModelError(
                f"{self.spec!r} has no recording to speak by; put {REFERENCE} and, where the "
                f"system needs it, {REFERENCE_TEXT} (what is said in it) beside the model's "
                "files, or give a prompt with audio and text"
            )
        type(self).check_recording(self.prompt.audio)
        return self.prompt.audio

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak with noise that `seed` chooses; None is no noise, and the most probable tokens."""
        speech = self._speech()  # first: what prepares it may draw noise, too
        with paired_noise(seed):
            return speech.speak(text)

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the model's files in upstream's own inference code."""
        import torch

        self.files()
        torch.set_num_threads(threads)  # reading keeps to them, too
        return self._speech()

    def files(self) -> ModelFiles:
        """Return the model's files."""
        if not self.is_on_disk:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self.source.files()

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write weights, settings, prompt and, if there is one, manifest, all or nothing."""
        target = Path(directory)
        root = self.root()  # read first: what fails then is not the writing
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            from tts_compress.torch.layers.checkpoint import write_root
            from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

            if self.manifest is not None:
                root = copy_sharing_tensors(root)
                for table in type(self).tables(root):
                    table.drop()
            write_root(root, partial / WEIGHTS, self.layers)
            self._write(partial)
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, WEIGHTS)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target


def find_manifest(directory: Path, family: str) -> Manifest | None:
    """Return the manifest in a folder, refusing another family's; None without one."""
    if not (directory / MANIFEST_NAME).is_file():
        return None
    manifest = read_manifest(directory)
    if manifest.family != family:
        raise ModelError(f"'{directory}' is an artifact of family {manifest.family!r}")
    return manifest


def restore_weights(
    root: nn.Module,
    layers: Sequence[LayerRecord],
    path: Path,
    tables: Callable[[nn.Module], Iterable[Table]] = lambda _: (),
) -> nn.Module:
    """Fill the modules of a saved model, in place; no weight is ever larger than stored.

    Args:
        root: The modules as upstream builds them, without memory (`meta`) where they can be.
        layers: The decisions for its layers; empty if it is not compressed.
        path: The file with the weights.
        tables: Yields the tensors that are computed where the file does not hold them.

    Raises:
        ArtifactError: The file's tensors are not those of the modules.
    """
    from tts_compress.torch.layers.checkpoint import TensorFile, restore_root

    stored = TensorFile(path).names
    for table in tables(root):
        if f"{table.path}.{table.name}" not in stored:
            table.fill()
    return restore_root(root, layers, path)


def find_components(
    root: nn.Module, roles: Mapping[str, str], layers: Sequence[LayerRecord] = ()
) -> dict[str, Component]:
    """Return the components that hold weights, by name.

    Args:
        root: Holds them under their dotted names.
        roles: Role of each one, in the order data flows; those the root lacks are left out.
        layers: Decisions for its layers; some only state how a file stores them.
    """
    modules = dict(root.named_modules())
    widths = {layer.module: 2 for layer in layers if layer.weights in {"float16", "bfloat16"}}
    components = {
        name: _count(name, role, modules[name], widths)
        for name, role in roles.items()
        if name in modules
    }
    return {name: component for name, component in components.items() if component.parameters}


def _count(name: str, role: str, module: nn.Module, widths: Mapping[str, int]) -> Component:
    operators: Counter[str] = Counter()
    parameters = size = 0
    counted: set[int] = set()
    for inner, part in walk_layers(module):
        if isinstance(part, CompressedLayer):
            operator, shape = part.geometry.operator, part.geometry.shape
            stored = [value for key, value in part.state().items() if key != "bias"]
        elif (plain := operator_of(part)) is not None:
            operator, stored, shape = plain, _weights(part), Geometry.of(part).shape
        else:
            continue
        operators[operator] += 1
        # What layers share is one tensor that both hold.
        new = [tensor for tensor in stored if id(tensor) not in counted]
        counted |= {id(tensor) for tensor in chain(part.parameters(), part.buffers())}
        parameters += math.prod(shape) if new else 0
        width = widths.get(f"{name}.{inner}" if inner else name)
        size += sum(tensor.numel() * (width or tensor.element_size()) for tensor in new)
    return Component(
        name=name, role=role, parameters=parameters, size_bytes=size, operators=operators
    )


def _weights(module: nn.Module) -> list[Tensor]:
    """Return the tensors that a file stores for an operator's weight; two with weight norm."""
    if parametrize.is_parametrized(module, "weight"):
        return list(module.get_submodule("parametrizations.weight").parameters())
    return weights_of(module)
