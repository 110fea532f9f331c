"""What systems that run in torch have in common.

A new one brings a class that knows its files (`SourceFiles`), one that holds what was read of them
(`Loaded`), its `Options`, and a `TorchFamilyModel` that says how it speaks and what it writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from tts_compress.artifact import MANIFEST_NAME, atomic_directory, with_files
from tts_compress.errors import ModelError
from tts_compress.models.lazy import Lazy
from tts_compress.models.saved import WEIGHTS, layers_of
from tts_compress.models.torch_components import find_components

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from torch import nn

    from tts_compress.artifact import LayerRecord, Manifest
    from tts_compress.audio import Audio
    from tts_compress.models.base import Component, ModelFiles, Prompt, Runtime

__all__ = ["Loaded", "SourceFiles", "TorchFamilyModel"]


class SourceFiles(Protocol):
    """Where a model is read from."""

    def files(self) -> ModelFiles:
        """Return what the model consists of on disk."""


class Loaded(Protocol):
    """What of a model is in memory: upstream's own objects."""

    @property
    def root(self) -> nn.Module:
        """A module with every component as a child, under its name: the live ones."""

    def with_root(self, root: nn.Module) -> Self:
        """Return the same with other components; the given one stays as it is."""


SourceT = TypeVar("SourceT", bound=SourceFiles)
OptionsT = TypeVar("OptionsT")
LoadedT = TypeVar("LoadedT", bound=Loaded)


# No slots, for families cache what they derive; and no comparison or text of whole models.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TorchFamilyModel(ABC, Generic[SourceT, OptionsT, LoadedT]):
    """A model of a system whose own code speaks in torch; the base class of each family's.

    Models that differ in prompt or options share what is in memory.
    """

    family: ClassVar[str]
    """Its name in `tts_compress/families.py`."""

    roles: ClassVar[Mapping[str, str]]
    """What each component does, by its name below `root()`, in the order data flows."""

    spec: str
    """What the user named the model by."""

    source: SourceT
    """Where it is read from."""

    options: OptionsT
    """How it is run."""

    prompt: Prompt
    """What it speaks by, besides the text."""

    loaded: Lazy[LoadedT]
    """What of it is in memory, read when it is first needed."""

    manifest: Manifest | None = None
    """How it was compressed; None for an original."""

    is_on_disk: bool = True
    """Whether the files hold what is in memory."""

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Samples per second of what it speaks, Hz."""

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""

    @abstractmethod
    def _speech(self) -> Runtime:
        """Return upstream's inference code around the model, ready to speak by its prompt.

        Raises:
            ModelError: What it needs to speak is missing or cannot be read.
        """

    @abstractmethod
    def _write(self, directory: Path) -> None:
        """Write the weights, as `WEIGHTS`, and all else that a saved model is opened from.

        The manifest is written afterwards, and names every file that is there then.
        """

    @property
    def layers(self) -> tuple[LayerRecord, ...]:
        """What was decided for its layers; empty for an original."""
        return layers_of(self.manifest)

    def root(self) -> nn.Module:
        """Return the module that holds every component as a child; they are the live ones.

        Raises:
            ModelError: The files cannot be read or do not fit each other, or no clone is named.
            ArtifactError: A saved model's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return self.loaded.value.root

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        return find_components(self.root(), self.roles, self.layers)

    def with_root(self, root: nn.Module, manifest: Manifest | None) -> Self:
        """Return this model with other components in upstream's object; nothing is written."""
        changed = self.loaded.value.with_root(root)
        return replace(self, manifest=manifest, loaded=Lazy(lambda: changed), is_on_disk=False)

    def with_options(self, options: OptionsT) -> Self:
        """Return this model run in another way."""
        return replace(self, options=options)

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak with noise that `seed` chooses; None speaks without, by the most probable tokens.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
            ModelError: There is no recording to speak by, or the model cannot be read or run.
        """
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speech()  # first: what prepares it may draw noise, too
        with paired_noise(seed):
            return speech.speak(text)

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the model's files in upstream's own inference code.

        Raises:
            ModelError: The model was compressed in memory and not saved yet, or there is no
                recording to speak by.
        """
        import torch

        self.files()
        torch.set_num_threads(threads)  # reading keeps to them, too
        return self._speech()

    def files(self) -> ModelFiles:
        """Return the model's files.

        Raises:
            ModelError: The model was compressed in memory and not saved yet, or a file is missing.
        """
        if not self.is_on_disk:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self.source.files()

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write weights, settings, prompt and, if there is one, manifest, all or nothing.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The model or its recording cannot be read.
        """
        target = Path(directory)
        self.root()  # read first: what fails then is not the writing
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            self._write(partial)
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, WEIGHTS)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target
