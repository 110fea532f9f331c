"""NaturalSpeech2 by Amphion: a WaveNet that denoises EnCodec's latents, in a recording's voice."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.artifact import MANIFEST_NAME, atomic_directory, read_manifest, with_files
from tts_compress.errors import ModelError
from tts_compress.models.base import UNLIKE_UPSTREAM, Prompt
from tts_compress.models.naturalspeech2.components import ROLES
from tts_compress.models.naturalspeech2.distillation import OBJECTIVES
from tts_compress.models.naturalspeech2.network import (
    load_inference,
    restore_inference,
    root_of,
    with_modules,
)
from tts_compress.models.naturalspeech2.options import NS2Options, split_location
from tts_compress.models.naturalspeech2.package import Official
from tts_compress.models.naturalspeech2.settings import SETTINGS, NS2Settings
from tts_compress.models.naturalspeech2.source import REFERENCE, WEIGHTS, NS2Source
from tts_compress.models.naturalspeech2.speech import (
    SAMPLE_RATE,
    NS2Runtime,
    NS2Speech,
    check_recording,
)
from tts_compress.models.naturalspeech2.upstream import AMPHION
from tts_compress.models.torch_components import find_components

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from tts_compress.artifact import LayerRecord, Manifest
    from tts_compress.audio import Audio
    from tts_compress.models.base import Component, ModelFiles
    from tts_compress.models.distillation import Objective

__all__ = [
    "FAMILY",
    "Loaded",
    "NaturalSpeech2Model",
    "open_naturalspeech2",
    "open_naturalspeech2_artifact",
]

FAMILY = AMPHION.family


def open_naturalspeech2(location: str, spec: str) -> NaturalSpeech2Model:
    """Return a model; weights and the clone are read when they are first needed.

    Args:
        location: The folder of a checkpoint, of a saved model or of an artifact;
            `?inference_step=20` behind it sets the steps.
        spec: What the user named the model by.

    Raises:
        ModelError: There is no such model, its folder is not complete, or the option is wrong.
        ArtifactError: An artifact was altered after it was saved.
    """
    name, options = split_location(location)
    directory = Path(name)
    manifest = read_manifest(directory) if (directory / MANIFEST_NAME).is_file() else None
    if manifest is not None and manifest.family != FAMILY:
        raise ModelError(f"'{directory}' is an artifact of family {manifest.family!r}")
    return _open(NS2Source(directory=directory, spec=spec, manifest=manifest), options)


def open_naturalspeech2_artifact(
    directory: Path, spec: str, manifest: Manifest
) -> NaturalSpeech2Model:
    """Return a compressed model; weights and the clone are read when they are first needed.

    Args:
        directory: Where `save` wrote it.
        spec: What the user named the model by.
        manifest: How it was compressed.

    Raises:
        ModelError: The folder is not complete.
    """
    return _open(NS2Source(directory=directory, spec=spec, manifest=manifest), None)


def _open(source: NS2Source, options: NS2Options | None) -> NaturalSpeech2Model:
    source.check()
    return NaturalSpeech2Model(source, options=options, prompt=Prompt(audio=source.reference()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What of a model is in memory."""

    official: Official
    settings: NS2Settings
    inference: Any
    """The official `NS2Inference`."""

    is_on_disk: bool = True
    """Whether the files hold what its modules are."""


class NaturalSpeech2Model:
    """A NaturalSpeech2 model, from its files or compressed in memory.

    Args:
        source: Its files.
        options: How its solver is run; None for what its files say.
        prompt: The recording that it speaks by.
        loaded: What of it is in memory already.
    """

    family = FAMILY
    sample_rate = SAMPLE_RATE

    def __init__(
        self,
        source: NS2Source,
        *,
        options: NS2Options | None = None,
        prompt: Prompt | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        self._source = source
        self._options = options
        self._prompt = prompt or Prompt()
        self._loaded = loaded

    @property
    def spec(self) -> str:
        """What the user named the model by."""
        return self._source.spec

    @property
    def manifest(self) -> Manifest | None:
        """How it was compressed; None for an original."""
        return self._source.manifest

    @property
    def prompt(self) -> Prompt:
        """The recording that it speaks by."""
        return self._prompt

    @property
    def inference(self) -> Any:
        """The official `NS2Inference`, whose `inference` works as ever once its `args` are set.

        Raises:
            ModelError: No clone is named, or the files cannot be read or do not fit each other.
            ArtifactError: An artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return self._load().inference

    @property
    def options(self) -> NS2Options:
        """How its solver is run.

        Raises:
            ModelError: No clone is named, or the settings cannot be read.
        """
        return self._options or self._load().settings.options

    def with_options(self, options: NS2Options) -> NaturalSpeech2Model:
        """Return this model with its solver run in another way."""
        return NaturalSpeech2Model(
            self._source, options=options, prompt=self._prompt, loaded=self._loaded
        )

    def with_prompt(self, prompt: Prompt) -> NaturalSpeech2Model:
        """Return this model with another recording; the system does not ask what is said in it.

        Raises:
            ModelError: The recording cannot be read.
        """
        if prompt.audio is None:
            return self
        check_recording(prompt.audio)
        changed = Prompt(audio=prompt.audio)
        return NaturalSpeech2Model(
            self._source, options=self._options, prompt=changed, loaded=self._loaded
        )

    def objectives(self) -> tuple[Objective, ...]:
        """Return what there is to imitate, in the order data flows."""
        return OBJECTIVES

    def root(self) -> nn.Module:
        """Return the module that holds the model's parts and `codec`; they are the live ones.

        Raises:
            ModelError: No clone is named, or the files cannot be read or do not fit each other.
            ArtifactError: An artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return root_of(self.inference)

    def with_root(self, root: nn.Module, manifest: Manifest | None) -> NaturalSpeech2Model:
        """Return this model with other modules in the official object; nothing is written."""
        loaded = self._load()
        held = with_modules(loaded.inference, root)
        return NaturalSpeech2Model(
            replace(self._source, manifest=manifest),
            options=self._options,
            prompt=self._prompt,
            loaded=replace(loaded, inference=held, is_on_disk=False),
        )

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        from tts_compress.layers.structure import prepare, share

        # Attention hides three of its four projections until it is opened.
        return find_components(prepare(share(self.root())), ROLES, self._layers)

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        loaded = self._load()
        diffusion = loaded.settings.model["diffusion"]
        wavenet, audio = diffusion["wavenet"], self._prompt.audio
        return {
            "sample rate": f"{SAMPLE_RATE} Hz",
            "estimator": f"WaveNet, {wavenet['num_layers']} layers of width "
            f"{wavenet['hidden_size']}",
            "solver": f"{self.options.inference_step} steps, {diffusion['ode_solver']}",
            UNLIKE_UPSTREAM: "dropout is off here, where the script leaves it on",
            "recording": "none" if audio is None else audio.name,
        }

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
            ModelError: There is no recording to speak by, or the model cannot be read or run.
        """
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speech()
        with paired_noise(seed):
            return speech.speak(text)

    def open_runtime(self, *, threads: int) -> NS2Runtime:
        """Open the model's files in upstream's own inference code.

        Raises:
            ModelError: The model was compressed in memory and not saved yet, or there is no
                recording to speak by.
        """
        import torch

        self.files()
        speech = self._speech()
        torch.set_num_threads(threads)
        return NS2Runtime(speech)

    def files(self) -> ModelFiles:
        """Return the weights, the codec's among them, and what lies beside them.

        Raises:
            ModelError: The model was compressed in memory and not saved yet, or the codec's
                weights are missing.
        """
        if self._loaded is not None and not self._loaded.is_on_disk:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self._source.files()

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write weights, settings, recording and, if there is one, manifest, all or nothing.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The model cannot be read.
        """
        from tts_compress.layers.checkpoint import write_root
        from tts_compress.layers.structure import share
        from tts_compress.models.naturalspeech2.tables import drop_tables

        target = Path(directory)
        loaded, root = self._load(), self.root()
        settings = replace(loaded.settings, options=self.options)
        if self.manifest is not None:
            root = drop_tables(share(root))
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            write_root(root, partial / WEIGHTS, self._layers)
            (partial / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
            if (audio := self._prompt.audio) is not None:
                shutil.copyfile(audio, partial / f"{REFERENCE}{audio.suffix.lower()}")
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, WEIGHTS)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target

    @property
    def _layers(self) -> tuple[LayerRecord, ...]:
        return self.manifest.layers if self.manifest else ()

    def _load(self) -> Loaded:
        if self._loaded is None:
            official = Official()
            settings = self._source.settings(official.clone)
            if self._source.is_saved:
                inference = restore_inference(official, self._source, settings, self._layers)
            else:
                inference = load_inference(official, self._source, settings)
            self._loaded = Loaded(official=official, settings=settings, inference=inference)
        return self._loaded

    def _speech(self) -> NS2Speech:
        if self._prompt.audio is None:
            raise ModelError(
                f"{self.spec!r} has no recording to speak by; put reference.wav beside its "
                "checkpoint, or give a prompt with audio"
            )
        check_recording(self._prompt.audio)
        loaded = self._load()
        return NS2Speech(
            official=loaded.official,
            inference=loaded.inference,
            recording=self._prompt.audio,
            options=self.options,
        )
