"""F5-TTS: a diffusion transformer that speaks as a recording does, and a Vocos vocoder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.artifact import MANIFEST_NAME, atomic_directory, read_manifest, with_files
from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.f5.components import ROLES
from tts_compress.models.f5.config import check_vocoder_config, read_config, write_config
from tts_compress.models.f5.files import (
    CONFIG,
    REFERENCE_AUDIO,
    REFERENCE_TEXT,
    VOCABULARY,
    VOCODER,
    WEIGHTS,
    F5Files,
    download_release,
    find_files,
)
from tts_compress.models.f5.network import (
    forget_text,
    load_official,
    restore_official,
    root_of,
    with_modules,
)
from tts_compress.models.f5.options import F5Options, split_location
from tts_compress.models.f5.package import SAMPLE_RATE
from tts_compress.models.f5.reference import (
    Reference,
    check_recording,
    prepare_reference,
    write_recording,
)
from tts_compress.models.f5.speech import F5Runtime, check_symbols, speak, split_text
from tts_compress.models.torch_components import find_components

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from tts_compress.artifact import LayerRecord, Manifest
    from tts_compress.audio import Audio
    from tts_compress.models.base import Component, ModelFiles
    from tts_compress.models.f5.config import F5Config

__all__ = ["FAMILY", "F5Model", "F5Options", "open_f5", "open_f5_artifact"]

FAMILY = "f5-tts"


def open_f5(location: str, spec: str) -> F5Model:
    """Return a model by its place; weights are read when they are first needed.

    Args:
        location: A directory, or a name that the f5_tts package knows; `?nfe_step=16&speed=1.2`
            behind it sets options of `F5Options`.
        spec: What the user named the model by.

    Raises:
        ModelError: There is no such model, a file of it is missing or malformed, or an option is.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: f5_tts is not installed and a name was given.
    """
    name, options = split_location(location)
    directory = Path(name)
    if not directory.is_dir():
        if directory.exists() or len(directory.parts) != 1:
            raise ModelError(
                f"'{name}' is no directory; an F5-TTS model is a directory or a name such as "
                "'F5TTS_v1_Base'"
            )
        return _open(download_release(name), spec, None, options)
    manifest = read_manifest(directory) if (directory / MANIFEST_NAME).is_file() else None
    if manifest is not None and manifest.family != FAMILY:
        raise ModelError(f"'{directory}' is an artifact of family {manifest.family!r}")
    return _open(find_files(directory), spec, manifest, options)


def open_f5_artifact(directory: Path, spec: str, manifest: Manifest) -> F5Model:
    """Return a saved artifact; weights are read when they are first needed.

    Args:
        directory: Where it is.
        spec: What the user named it by.
        manifest: What its manifest says.

    Raises:
        ModelError: A file of it is missing or malformed.
    """
    return _open(find_files(directory), spec, manifest, {})


def _open(
    files: F5Files, spec: str, manifest: Manifest | None, options: Mapping[str, float]
) -> F5Model:
    config = read_config(files.config)
    check_vocoder_config(files.vocoder_config)
    source = _Source(files=files, config=config, spec=spec, manifest=manifest)
    chosen = config.options.changed(options, repr(spec))
    return F5Model(source, _Network(source), options=chosen, prompt=files.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where a model comes from, and how it came to be."""

    files: F5Files
    config: F5Config
    spec: str
    manifest: Manifest | None

    @property
    def layers(self) -> tuple[LayerRecord, ...]:
        """What was decided for its layers."""
        return () if self.manifest is None else self.manifest.layers


class _Network:
    """The official object: loaded when it is first needed, and shared by models that differ less.

    Args:
        source: What to load.
        held: The object, where its modules are in memory only.
    """

    def __init__(self, source: _Source, held: Any = None) -> None:
        self._source = source
        self.is_held = held is not None
        if self.is_held:
            self.api = held

    @cached_property
    def api(self) -> Any:
        """The `f5_tts.api.F5TTS`."""
        source = self._source
        if source.files.vocoder_weights is None:
            return restore_official(source.files, source.config, source.layers)
        return load_official(source.files, source.config)


class F5Model:
    """An F5-TTS model, from its files or with modules exchanged in memory.

    Args:
        source: Where it comes from.
        network: The official object.
        options: How its solver is run.
        prompt: The recording that it speaks by, and what is said in it.
    """

    family = FAMILY

    def __init__(
        self, source: _Source, network: _Network, *, options: F5Options, prompt: Prompt
    ) -> None:
        self._source = source
        self._network = network
        self._options = options
        self._prompt = prompt
        self._reference: Reference | None = None

    @property
    def spec(self) -> str:
        """What the user named the model by."""
        return self._source.spec

    @property
    def manifest(self) -> Manifest | None:
        """How it was compressed; None for an original."""
        return self._source.manifest

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return SAMPLE_RATE

    @property
    def options(self) -> F5Options:
        """How its solver is run."""
        return self._options

    @property
    def prompt(self) -> Prompt:
        """The recording that it speaks by, and what is said in it."""
        return self._prompt

    @property
    def api(self) -> Any:
        """The official `f5_tts.api.F5TTS`, whose `infer` works as ever.

        Raises:
            ModelError: The files cannot be read, or do not fit each other.
            ArtifactError: A saved artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return self._network.api

    def with_options(self, options: F5Options) -> F5Model:
        """Return this model with its solver run in another way."""
        return F5Model(self._source, self._network, options=options, prompt=self._prompt)

    def with_prompt(self, prompt: Prompt) -> F5Model:
        """Return this model with another recording, or another text of the same one.

        The text of the former recording does not stay when only the recording is exchanged.

        Raises:
            ModelError: The recording cannot be read.
        """
        changed = self._prompt
        if prompt.audio is not None:
            check_recording(prompt.audio)
            changed = Prompt(audio=prompt.audio)
        if prompt.text is not None:
            changed = replace(changed, text=prompt.text)
        return F5Model(self._source, self._network, options=self._options, prompt=changed)

    def root(self) -> nn.Module:
        """Return the module that holds `transformer` and `vocoder`; they are the live ones."""
        return root_of(self.api)

    def with_root(self, root: nn.Module, manifest: Manifest | None) -> F5Model:
        """Return this model with other modules in the official object; nothing is written."""
        source = replace(self._source, manifest=manifest)
        held = with_modules(self.api, root)
        return F5Model(source, _Network(source, held), options=self._options, prompt=self._prompt)

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        return find_components(self.root(), ROLES, self._source.layers)

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        arch = self._source.config.arch
        audio = self._prompt.audio
        return {
            "sample rate": f"{SAMPLE_RATE} Hz",
            "transformer": f"{self._source.config.backbone}, {arch.get('depth')} layers "
            f"of width {arch.get('dim')}",
            "solver": f"{self._options.nfe_step} steps, guidance {self._options.cfg_strength:g}",
            "recording": "none" if audio is None else audio.name,
        }

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Raises:
            TextError: The text is empty, has nothing to speak, or a sentence of it is too long.
            ModelError: There is no recording to speak by, or the modules cannot be run.
        """
        if self._reference is None:
            self._reference = prepare_reference(self._prompt, self.spec)
        parts = split_text(text, self._reference, self._options)
        check_symbols(self.api, text)
        try:
            return speak(self.api, self._reference, parts, self._options, seed)
        finally:
            forget_text(self.api)

    def open_runtime(self, *, threads: int) -> F5Runtime:
        """Open the model's files in upstream's own inference code.

        Raises:
            ModelError: The model was compressed in memory and not saved yet, or there is no
                recording to speak by.
        """
        import torch

        self._check_saved()
        prepare_reference(self._prompt, self.spec)
        torch.set_num_threads(threads)
        return F5Runtime(self.api, self._prompt, self._options)

    def files(self) -> ModelFiles:
        """Return the checkpoint, the vocoder and what lies beside them.

        Raises:
            ModelError: The model was compressed in memory and not saved yet.
        """
        self._check_saved()
        return self._source.files.model_files()

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write weights, settings, recording and, if there is one, manifest, all or nothing.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The recording cannot be read.
        """
        from tts_compress.layers.checkpoint import write_root

        target = Path(directory)
        files = self._source.files
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            write_root(self.root(), partial / WEIGHTS, self._source.layers)
            write_config(partial / CONFIG, self._source.config, self._options)
            shutil.copyfile(files.vocabulary, partial / VOCABULARY)
            shutil.copyfile(files.vocoder_config, partial / VOCODER)
            if self._prompt.audio is not None:
                write_recording(self._prompt.audio, partial / REFERENCE_AUDIO)
            if self._prompt.text is not None:
                (partial / REFERENCE_TEXT).write_text(self._prompt.text, encoding="utf-8")
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, WEIGHTS)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target

    def _check_saved(self) -> None:
        if self._network.is_held:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
