"""Parler-TTS: a language model over the codes of an audio codec, told in words how to speak."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.artifact import MANIFEST_NAME, atomic_directory, read_manifest, with_files
from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.parler.components import ROLES
from tts_compress.models.parler.network import build_skeleton, load_root, write_settings
from tts_compress.models.parler.source import DESCRIPTION, WEIGHTS, ParlerSource
from tts_compress.models.parler.speech import ParlerOptions, ParlerSpeech
from tts_compress.models.parler.tables import compute_tables, drop_tables
from tts_compress.models.parler.tokenizers import load_tokenizers, write_tokenizers
from tts_compress.models.torch_components import find_components

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from tts_compress.artifact import LayerRecord, Manifest
    from tts_compress.audio import Audio
    from tts_compress.models.base import Component, ModelFiles
    from tts_compress.models.language_model import Tokens
    from tts_compress.models.parler.tokenizers import Tokenizers

__all__ = [
    "DEFAULT_DESCRIPTION",
    "FAMILY",
    "Loaded",
    "ParlerModel",
    "open_parler",
    "open_parler_artifact",
]

FAMILY = "parler-tts"

DEFAULT_DESCRIPTION = (
    "A woman speaks at a moderate pace with a clear and natural voice, close to the microphone, "
    "and nothing else can be heard."
)
"""How to speak where neither a prompt nor the model's folder says it."""


def open_parler(location: str, spec: str) -> ParlerModel:
    """Return a model; its weights are read when they are first needed.

    Args:
        location: A folder that the official `save_pretrained` wrote, with the tokenizer's files and
            optionally `description.txt`, a name on the model hub, or an artifact's folder.
        spec: What the user named the model by.

    Raises:
        ModelError: There is no such model, or its folder is not complete.
        ArtifactError: An artifact was altered after it was saved.
    """
    if Path(location, MANIFEST_NAME).is_file():
        return open_parler_artifact(Path(location), spec, read_manifest(Path(location)))
    source = ParlerSource(location=location, spec=spec)
    source.check()
    return ParlerModel(source)


def open_parler_artifact(directory: Path, spec: str, manifest: Manifest) -> ParlerModel:
    """Return a compressed model; its weights are read when they are first needed.

    Args:
        directory: Where `save` wrote it.
        spec: What the user named the model by.
        manifest: How it was compressed.

    Raises:
        ModelError: The folder is not complete.
    """
    source = ParlerSource(location=str(directory), spec=spec, manifest=manifest)
    source.check()
    return ParlerModel(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What of a model is in memory."""

    root: nn.Module | None = None
    tokenizers: Tokenizers | None = None
    is_on_disk: bool = True
    """Whether the files hold what `root` is."""


class ParlerModel:
    """A Parler-TTS model, from its files or compressed in memory.

    Args:
        source: Its files.
        prompt: How to speak; a description in it goes before the folder's own.
        options: How tokens are drawn.
        loaded: What of it is in memory already.
    """

    family = FAMILY

    def __init__(
        self,
        source: ParlerSource,
        *,
        prompt: Prompt | None = None,
        options: ParlerOptions | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        self._source = source
        self._prompt = prompt or Prompt()
        self._options = options or ParlerOptions()
        self._loaded = loaded or Loaded()

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
        codec = self._files().read_config()["audio_encoder"]
        rate = codec.get("sampling_rate")
        if not isinstance(rate, int) or rate <= 0:
            raise ModelError(f"the codec of '{self.spec}' has the sampling rate {rate!r}, not Hz")
        return rate

    def components(self) -> Mapping[str, Component]:
        """Return the components, in the order data flows."""
        return find_components(self.root(), ROLES, self._layers)

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        config = self._files().read_config()
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "codebooks": config["decoder"].get("num_codebooks"),
            "codec": config["audio_encoder"].get("model_type"),
            "description": self.description,
        }

    @property
    def description(self) -> str:
        """How it speaks, in words."""
        return self._prompt.description or self._files().description() or DEFAULT_DESCRIPTION

    def with_prompt(self, prompt: Prompt) -> ParlerModel:
        """Return this model with another description; recordings are not used by this system.

        Raises:
            ModelError: The description is empty.
        """
        if prompt.description is None:
            return self
        if not prompt.description.strip():
            raise ModelError("the description is empty; say in words how to speak, or leave it out")
        described = replace(self._prompt, description=prompt.description.strip())
        return ParlerModel(
            self._source, prompt=described, options=self._options, loaded=self._loaded
        )

    def with_options(self, options: ParlerOptions) -> ParlerModel:
        """Return this model with tokens drawn in another way."""
        return ParlerModel(self._source, prompt=self._prompt, options=options, loaded=self._loaded)

    def root(self) -> nn.Module:
        """Return the official object; its children are the components.

        Raises:
            ModelError: The files cannot be read.
            MissingExtraError: A package is not installed.
        """
        if self._loaded.root is None:
            manifest = self.manifest
            root = (
                load_root(self._files()) if manifest is None else _restore(self._files(), manifest)
            )
            self._loaded = replace(self._loaded, root=root)
            return root
        return self._loaded.root

    def with_root(self, root: nn.Module, manifest: Manifest | None) -> ParlerModel:
        """Return this model around another official object; nothing is copied or written."""
        return ParlerModel(
            replace(self._source, manifest=manifest),
            prompt=self._prompt,
            options=self._options,
            loaded=replace(self._loaded, root=root, is_on_disk=False),
        )

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak with tokens drawn by noise that `seed` chooses; None takes the most probable.

        Speech ends where the model ends it, and after `max_length` steps in any case.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
            ModelError: The model cannot be read or run.
        """
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speech()
        with paired_noise(seed):
            return speech.speak(text, self._options)

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the tokens.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
            ModelError: The model cannot be read or run.
        """
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speech()
        with paired_noise(seed):
            return speech.tokens(text, self._options)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, K, V]`.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
            ModelError: The model cannot be read or run, or the tokens are not its own.
        """
        return self._speech().logits(text, tokens)

    def open_runtime(self, *, threads: int) -> ParlerRuntime:
        """Open the model's files in the official code."""
        import torch

        self.files()
        speech = self._speech()
        torch.set_num_threads(threads)
        return ParlerRuntime(speech)

    def files(self) -> ModelFiles:
        """Return the model's files; those of a hub are fetched.

        Raises:
            ModelError: The model was compressed in memory and not saved yet.
        """
        if not self._loaded.is_on_disk:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self._files().files()

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write weights, settings, tokenizers, description and manifest, all or nothing.

        An uncompressed model can be read by the official `from_pretrained` from there.

        Returns:
            The directory.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
        """
        from tts_compress.layers.checkpoint import write_root
        from tts_compress.layers.structure import share

        directory = Path(directory)
        root, tokenizers = self.root(), self._tokenizers()
        with atomic_directory(directory, marker=MANIFEST_NAME, force=force) as partial:
            if self.manifest is not None:
                root = drop_tables(share(root))
            write_root(root, partial / WEIGHTS, self._layers)
            write_settings(root, partial)
            write_tokenizers(tokenizers, partial)
            (partial / DESCRIPTION).write_text(f"{self.description}\n", encoding="utf-8")
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, WEIGHTS)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return directory

    def _files(self) -> ParlerSource:
        """Return the model's files, fetched once."""
        self._source = self._source.fetched()
        return self._source

    @property
    def _layers(self) -> tuple[LayerRecord, ...]:
        return self.manifest.layers if self.manifest else ()

    def _tokenizers(self) -> Tokenizers:
        if self._loaded.tokenizers is None:
            found = load_tokenizers(self._files().directory(), self._files().read_config())
            self._loaded = replace(self._loaded, tokenizers=found)
            return found
        return self._loaded.tokenizers

    def _speech(self) -> ParlerSpeech:
        return ParlerSpeech(
            root=self.root(), tokenizers=self._tokenizers(), description=self.description
        )


class ParlerRuntime:
    """The official `generate` with the model's own settings; what its users hear."""

    def __init__(self, speech: ParlerSpeech) -> None:
        self._speech = speech

    def speak(self, text: str) -> Audio:
        """Speak with the noise that torch draws.

        Raises:
            TextError: The text is empty, has nothing to speak, or is too long.
        """
        return self._speech.speak(text, ParlerOptions())


def _restore(source: ParlerSource, manifest: Manifest) -> nn.Module:
    from tts_compress.layers.checkpoint import restore_root
    from tts_compress.layers.tensors_file import TensorsFile

    path = source.directory() / WEIGHTS
    root = compute_tables(build_skeleton(source.directory()), TensorsFile(path).names)
    restore_root(root, manifest.layers, path)
    return root
