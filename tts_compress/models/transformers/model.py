"""Voices of transformers: the official classes speak, whatever their layers compute in."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from tts_compress.artifact import MANIFEST_NAME, atomic_directory
from tts_compress.audio import Audio
from tts_compress.errors import model_errors
from tts_compress.models.base import Objective, Speaking
from tts_compress.models.pretrained import CONFIG, GENERATION, quiet, write_settings
from tts_compress.models.speakers import find_speaker
from tts_compress.models.torch_model import TorchFamilyModel
from tts_compress.models.transformers import FAMILY
from tts_compress.models.transformers.files import (
    PRESET,
    SPEAKER,
    VOCODER_CONFIG,
    VoiceOptions,
    VoiceSource,
    find_source,
)
from tts_compress.models.transformers.network import (
    VoiceNetworks,
    load_networks,
    write_official,
)
from tts_compress.models.transformers.systems import SYSTEMS, System, Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speech:
    """The official objects with what they need to speak."""

    system: System
    voice: Voice
    sample_rate: int

    def speak(self, text: str) -> Audio:
        """Return the audio of the official code, with the noise that torch draws."""
        with model_errors(f"the model cannot speak {text[:40]!r}"), quiet():
            samples = self.system.speak(self.voice, text)
        return Audio(samples=samples.float().cpu().numpy(), sample_rate=self.sample_rate)


class TransformersModel(TorchFamilyModel[VoiceSource, VoiceOptions, VoiceNetworks]):
    """A voice of transformers, from its files or compressed in memory.

    It is opened from a folder that `save_pretrained` of the model and of its tokenizer wrote, from
    a name on the model hub, or from an artifact's folder.
    """

    family = FAMILY.name
    find = find_source
    read = load_networks
    roles: ClassVar = {
        name: role for system in SYSTEMS.values() for name, role in system.roles.items()
    }

    @property
    def system(self) -> System:
        """The kind of voice it is."""
        return SYSTEMS[self.source.kind]

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return self.system.sample_rate(self.source)

    @property
    def language(self) -> str | None:
        """Language of its texts as the tokenizer's settings state it; None where they do not."""
        return self.source.language

    @property
    def speakers(self) -> Mapping[str, int]:
        """Ids of the speakers by name, which is a number; empty for a voice of one."""
        return self.source.speakers

    @property
    def speaking(self) -> Speaking:
        """The speaker that was chosen, None for the first, and the language."""
        languages = (self.language,) if self.language else ()
        return Speaking(speaker=self.options.speaker, languages=languages, prompt=self.prompt)

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this voice speaking as one of its speakers.

        Raises:
            ModelError: There is no such speaker, or only one.
        """
        if speaking.speaker is None:
            return self
        name = find_speaker(self.speakers, speaking.speaker, self.spec)
        return self.with_options(replace(self.options, speaker=name))

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        return {
            "type": self.source.kind,
            "sample rate": f"{self.sample_rate} Hz",
            "language": self.language or "not stated",
            "speakers": len(self.speakers) or 1,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows."""
        return self.system.objectives

    def _speech(self) -> _Speech:
        options = self.options
        if options.speaker is None and self.speakers:
            options = replace(options, speaker="0")
        return _Speech(
            system=self.system,
            voice=Voice(
                root=self.root(),
                tokenizer=self.loaded.tokenizer(),
                options=options,
                source=self.source,
            ),
            sample_rate=self.sample_rate,
        )

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write an artifact; or, of a voice that was not compressed, the official folders.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The model cannot be read.
        """
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
        self.loaded.tokenizer().save_pretrained(directory)
        for name in (SPEAKER, PRESET, GENERATION):
            if (path := self.source.directory / name).is_file():
                shutil.copyfile(path, directory / name)
