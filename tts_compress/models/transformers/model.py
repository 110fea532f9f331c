"""Voices of the package transformers: the official objects, read or built empty and then filled."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from typing_extensions import override

from tts_compress.artifact import MANIFEST_NAME, LayerRecord, Manifest, atomic_directory
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import Component, Objective, Reading, Speaking, Tokens
from tts_compress.models.files import check_duration, write_prompt
from tts_compress.models.pretrained import (
    CONFIG,
    GENERATION,
    build_empty,
    load_pretrained,
    quiet,
    write_settings,
)
from tts_compress.models.speakers import find_speaker
from tts_compress.models.stand_ins import offer_torchaudio
from tts_compress.models.torch_model import (
    WEIGHTS,
    LoadedRoot,
    TorchFamilyModel,
    find_components,
    restore_weights,
)
from tts_compress.models.torch_noise import paired_noise
from tts_compress.models.transformers import FAMILY
from tts_compress.models.transformers.files import (
    PREPROCESSOR,
    PRESET,
    PROCESSOR,
    SPEAKER,
    VOCODER,
    VOCODER_CONFIG,
    VoiceOptions,
    VoiceSource,
    find_source,
)
from tts_compress.models.transformers.latents import (
    PHONON,
    POCKET,
    VIBEVOICE,
    read_rows,
    spoken_rows,
)
from tts_compress.models.transformers.spectrograms import FASTSPEECH2, SPEECHT5, VITS
from tts_compress.models.transformers.tokens import BARK, CSM, DIA, HIGGS
from tts_compress.models.transformers.voice import System, TokenKind, Voice, read_tokenizer

SYSTEMS: dict[str, System] = {
    "bark": BARK,
    "fastspeech2_conformer_with_hifigan": FASTSPEECH2,
    "speecht5": SPEECHT5,
    "vibevoice": VIBEVOICE,
    "vits": VITS,
    "csm": CSM,
    "dia": DIA,
    "gradium_phonon_tts": PHONON,
    "higgs_audio_v2": HIGGS,
    "pocket_tts": POCKET,
}
"""Kinds of voices, by the `model_type` in `config.json`; `files.KINDS` lists their names."""


def load_networks(source: VoiceSource, layers: Sequence[LayerRecord]) -> LoadedRoot:
    """Read an original, or an artifact whose weights are never larger than stored."""
    directory, system = source.directory, SYSTEMS[source.kind]
    if (directory / MANIFEST_NAME).is_file():
        root = restore_weights(build_skeleton(source, system), layers, directory / WEIGHTS)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # for what only training reads: files may lack it
            root = load_pretrained(_official(system.class_name), directory)
        if source.vocoder is not None:
            vocoder = load_pretrained(_official(system.vocoder), source.vocoder)
            root.add_module("vocoder", vocoder)
    return LoadedRoot(root=root.eval(), tokenizer=cache(lambda: read_tokenizer(directory)))


def build_skeleton(source: VoiceSource, system: System) -> nn.Module:
    """Return the model that an artifact's settings describe, its weights without values."""
    root = _build(source.directory / CONFIG, system.class_name)
    if (path := source.directory / GENERATION).is_file():
        with model_errors(f"'{path}' cannot be read"), quiet():
            read = _official("GenerationConfig").from_pretrained
            settings = read(source.directory, local_files_only=True)
        vars(root)["generation_config"] = settings
    if system.vocoder:
        root.add_module("vocoder", _build(source.vocoder_config, system.vocoder))
    return root.eval()


def _build(path: Path, class_name: str) -> nn.Module:
    official = _official(class_name)
    root: nn.Module = build_empty(
        path, lambda: official.config_class.from_json_file(path), official
    )
    return root


def write_official(root: nn.Module, directory: Path) -> None:
    """Write a model and its vocoder, which is a child of it, as `save_pretrained` writes both."""
    from tts_compress.torch.layers.checkpoint import write_root
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

    voice, vocoder = copy_sharing_tensors(root), root.get_submodule("vocoder")
    del voice.vocoder
    for part, folder in ((voice, directory), (vocoder, directory / VOCODER)):
        folder.mkdir(exist_ok=True)
        write_root(part, folder / WEIGHTS)
        write_settings(part, folder / CONFIG)


def _official(class_name: str) -> Any:
    """Return the official class; its import says much on standard error."""
    import transformers

    module, _, name = class_name.rpartition(".")
    if module:
        offer_torchaudio()  # which that module imports, to resample recordings
    with quiet():
        try:
            return getattr(import_module(module or "transformers"), name)
        except (AttributeError, ModuleNotFoundError) as error:
            raise ModelError(
                f"transformers {transformers.__version__} has no {name}; install a later one"
            ) from error


class TransformersModel(TorchFamilyModel[VoiceSource, VoiceOptions, LoadedRoot]):
    """A voice of transformers, from its files or compressed in memory.

    It is opened from a folder that `save_pretrained` of the model and of its tokenizer wrote, from
    a name on the model hub, or from an artifact's folder.
    """

    family = FAMILY.name
    find = find_source
    read = load_networks
    check_recording = check_duration

    roles: ClassVar = {}  # each kind has its own

    @override
    def components(self) -> Mapping[str, Component]:
        return find_components(self.root(), self.system.roles, self.layers)

    @property
    def system(self) -> System:
        """The kind of voice it is."""
        return SYSTEMS[self.source.kind]

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return self.system.sample_rate(self.source)

    @property
    def speakers(self) -> Mapping[str, int]:
        """Ids of the speakers by name, which is a number; empty for a voice of one."""
        return self.source.speakers

    @property
    def speaking(self) -> Speaking:
        """The speaker that was chosen, None for the first, and the language."""
        languages = (self.source.language,) if self.source.language else ()
        return Speaking(speaker=self.options.speaker, languages=languages, prompt=self.prompt)

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this voice speaking as one of its speakers, or by another recording."""
        if speaking.speaker is None:
            recorded = self.source.is_recorded and speaking.prompt is not None
            return super().speaking_as(speaking) if recorded else self
        name = find_speaker(self.speakers, speaking.speaker, self.spec)
        return self.with_options(replace(self.options, speaker=name))

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        return {
            "type": self.source.kind,
            "sample rate": f"{self.sample_rate} Hz",
            "language": self.source.language or "not stated",
            "speakers": len(self.speakers) or 1,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows."""
        return self.system.objectives

    def _speech(self) -> Voice:
        options = self.options
        if options.speaker is None and self.speakers:
            options = replace(options, speaker="0")
        if self.prompt.audio is not None:
            self._recording()  # refused here, where it is no recording
        voice = Voice(
            system=self.system,
            root=self.root(),
            tokenizer=self.loaded.tokenizer(),
            options=options,
            source=self.source,
            prompt=self.prompt,
        )
        return self.system.prepare(voice)

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write an artifact; or, of a voice that was not compressed, the official folders."""
        if self.manifest is not None or not self.system.vocoder:
            return super().save(directory, force=force)
        target, root = Path(directory), self.root()
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            write_official(root, partial)
            self._write_rest(partial)
        return target

    def _write(self, directory: Path) -> None:
        """Write what the official `from_pretrained` reads, where nothing is compressed."""
        root = self.root()
        write_settings(root, directory / CONFIG)
        if self.system.vocoder:
            write_settings(root.get_submodule("vocoder"), directory / VOCODER_CONFIG)
        self._write_rest(directory)

    def _write_rest(self, directory: Path) -> None:
        """Write the tokenizer, settings of generation, and the speaker, where there are any."""
        tokenizer = self.loaded.tokenizer()
        if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
            backend.no_padding()  # which a call sets, and processors take for settings of sound
        tokenizer.save_pretrained(directory)
        for name in (SPEAKER, PRESET, GENERATION, PROCESSOR, PREPROCESSOR):
            if (path := self.source.directory / name).is_file():
                shutil.copyfile(path, directory / name)
        write_prompt(self.prompt, directory)


_THRESHOLD = -4.0  # what the official code takes where nothing is stated


class LatentTransformersModel(TransformersModel):
    """A voice that writes latents until a number says that its speech ends."""

    def generate_latents(self, text: str, *, seed: int | None) -> npt.NDArray[np.float32]:
        """Speak as `synthesize` does and return what the language model read."""
        voice = self._speech()
        problem = model_errors(f"the model cannot speak {text[:40]!r}")
        with problem, quiet(), paired_noise(seed):
            return spoken_rows(voice, text).cpu().numpy()

    def read_latents(self, text: str, latents: npt.NDArray[np.float32]) -> Reading:
        """Return the answers to latents that another model spoke."""
        voice = self._speech()
        if latents.ndim != 2 or latents.shape[1] != (width := voice.root.config.latent_dim):
            raise ModelError(
                f"latents of shape {latents.shape} are not ones of this model: {width}"
            )
        with model_errors(f"the model cannot read {text[:40]!r}"), quiet():
            answers, stops = read_rows(voice, text, torch.from_numpy(latents))
        stated = getattr(voice.root.generation_config, "eos_threshold", None)
        threshold = _THRESHOLD if stated is None else float(stated)
        return Reading(latents=answers.cpu().numpy(), stop=stops.cpu().numpy(), threshold=threshold)


class TokenTransformersModel(TransformersModel):
    """A voice that draws tokens of several codebooks in each step."""

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the tokens."""
        voice, kind = self._speech(), self._kind
        problem = model_errors(f"the model cannot speak {text[:40]!r}")
        with problem, quiet(), paired_noise(seed), torch.inference_mode():
            ids = kind.generate(voice, text)[0].cpu().numpy()
        special = kind.special(voice.root.config)
        return Tokens(ids=ids, chosen=~np.isin(ids[1:], special), stop=special[0])

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, K, V]`."""
        voice, ids = self._speech(), tokens.ids
        rows = torch.from_numpy(ids).to(voice.root.device)
        with model_errors(f"the tokens are not ones of {text[:40]!r}"), quiet(), torch.no_grad():
            read = self._kind.read(voice, text, rows)
        scores: npt.NDArray[np.float32] = read.float().cpu().numpy()
        if scores.shape[:2] != (len(ids) - 1, *ids.shape[1:]):
            raise ModelError(f"tokens of shape {ids.shape} are not ones of {text[:40]!r}")
        return scores

    @property
    def _kind(self) -> TokenKind:
        assert self.system.tokens is not None, "`open_voice` chose the class by it"
        return self.system.tokens


def open_voice(location: str, spec: str, manifest: Manifest | None = None) -> TransformersModel:
    """Open a voice, of the class that its kind has."""
    model = TransformersModel.open(location, spec, manifest)
    if not model.system.writes_latents and model.system.tokens is None:
        return model
    same = {field.name: getattr(model, field.name) for field in fields(model)}
    kind = LatentTransformersModel if model.system.writes_latents else TokenTransformersModel
    return kind(**same)
