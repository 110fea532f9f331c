"""Where a GPT-SoVITS model comes from: upstream's configuration, its two files, or an artifact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import MANIFEST_NAME
from tts_compress.errors import ModelError
from tts_compress.models.base import ModelFiles
from tts_compress.models.gpt_sovits.config_file import StatedFiles, read_config_file
from tts_compress.models.gpt_sovits.lora import merge_lora
from tts_compress.models.gpt_sovits.pretrained import (
    BERT,
    HUBERT,
    pretrained,
    pretrained_sovits,
    pretrained_speaker,
    pretrained_vocoder,
)
from tts_compress.models.gpt_sovits.settings import SETTINGS, read_settings
from tts_compress.models.gpt_sovits.versions import check_alphabet, read_mark
from tts_compress.models.gpt_sovits.weights import is_t2s, peek_version, read_sovits, read_t2s
from tts_compress.models.torch_model import WEIGHTS

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits.weights import SovitsWeights, T2SWeights

__all__ = ["GptSovitsSource", "artifact_source", "open_source"]

_ACCEPTED = "'CONFIG.yaml', 'T2S.ckpt,SOVITS.pth' or an artifact's folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsSource:
    """A model's files.

    Raises:
        ModelError: Of its methods: a file is missing, unreadable, or not what it should be.
    """

    spec: str
    """What the user named the model by, for errors."""

    version: str
    """`v1`, `v2`, `v2Pro`, `v2ProPlus`, `v3` or `v4`."""

    stated: StatedFiles | None = None
    """Upstream's files; None for an artifact."""

    directory: Path | None = None
    """An artifact's folder; None for an original."""

    def check(self) -> None:
        """Refuse a model whose files are not all there; an original's need the clone."""
        self.files()

    def read_t2s(self) -> T2SWeights:
        """Return an original's T2S model."""
        return read_t2s(self._original().t2s)

    def read_sovits(self) -> SovitsWeights:
        """Return an original's synthesizer, changes by LoRA added to what they change."""
        weights = read_sovits(self._original().sovits)
        base = self.base()
        return weights if base is None else merge_lora(weights, read_sovits(base))

    def base(self) -> Path | None:
        """Return the pretrained synthesizer that an original's LoRA changes; None without one."""
        is_lora = read_mark(self._original().sovits).is_lora
        return pretrained_sovits(self.version) if is_lora else None

    def bert(self) -> Path:
        """Return the folder of the text encoder, which hears Chinese only."""
        return self._original().bert or pretrained(BERT)

    def hubert(self) -> Path:
        """Return the folder of the speech encoder, which hears the reference recording."""
        return self._original().hubert or pretrained(HUBERT)

    def vocoder(self) -> Path | None:
        """Return the folder (v3) or file (v4) of the vocoder; None for versions without one."""
        return pretrained_vocoder(self.version)

    def speaker(self) -> Path | None:
        """Return the speaker verification model's file; None for versions without one."""
        return pretrained_speaker(self.version)

    def files(self) -> ModelFiles:
        """Return what the model consists of, everything that it speaks with."""
        if self.directory is not None:
            return _artifact_files(self.directory)
        stated = self._original()
        alone = [stated.t2s, stated.sovits, self.base(), self.speaker()]
        folders = [_folder_files(self.bert()), _folder_files(self.hubert())]
        if (vocoder := self.vocoder()) is not None:
            if vocoder.is_dir():
                folders.append(_folder_files(vocoder, ("bigvgan_generator.pt",)))
            else:
                alone.append(vocoder)
        return ModelFiles(
            weights=(
                *(path for path in alone if path is not None),
                *(path for folder in folders for path in folder.weights),
            ),
            settings=tuple(path for folder in folders for path in folder.settings),
        )

    def _original(self) -> StatedFiles:
        assert self.stated is not None, "an artifact has none of upstream's files"
        return self.stated


def open_source(location: str, spec: str) -> GptSovitsSource:
    """Return an original's files; of the clone, no more is needed than what they name in it.

    Args:
        location: Upstream's `tts_infer.yaml`, or the T2S model's and the synthesizer's path with a
            comma between, in either order.
        spec: What the user named the model by.

    Raises:
        ModelError: A file is missing or of something else, or the two do not fit.
        MissingExtraError: torch or PyYAML is not installed.
    """
    path = Path(location)
    if path.suffix in {".yaml", ".yml"}:
        stated = read_config_file(path)
    elif "," in location:
        stated = _two_files(location)
    else:
        problem = f"holds no {MANIFEST_NAME}" if path.is_dir() else "is no GPT-SoVITS model"
        raise ModelError(f"'{location}' {problem}; give {_ACCEPTED}")
    version = peek_version(stated.sovits)
    check_alphabet(str(stated.t2s), read_t2s(stated.t2s, mapped=True).symbols, version)
    return GptSovitsSource(spec=spec, version=version, stated=stated)


def artifact_source(directory: Path, spec: str) -> GptSovitsSource:
    """Return an artifact's files.

    Args:
        directory: Where it was saved.
        spec: What the user named the model by.

    Raises:
        ModelError: A file is missing or malformed.
    """
    _artifact_files(directory)
    version = read_settings(directory / SETTINGS).version
    return GptSovitsSource(spec=spec, version=version, directory=directory)


def _two_files(location: str) -> StatedFiles:
    """Return the files that a comma is between; a path may have commas of its own."""
    parts = location.split(",")
    pairs = [(",".join(parts[:at]), ",".join(parts[at:])) for at in range(1, len(parts))]
    first, second = next(
        ((Path(a), Path(b)) for a, b in pairs if Path(a).is_file() and Path(b).is_file()),
        (Path(pairs[0][0]), Path(pairs[0][1])),
    )
    are_t2s = is_t2s(first), is_t2s(second)
    if are_t2s[0] == are_t2s[1]:
        kind = "T2S models" if are_t2s[0] else "no T2S models"
        raise ModelError(
            f"'{first}' and '{second}' are both {kind}; give one T2S model (.ckpt) and one SoVITS "
            "model (.pth)"
        )
    t2s, sovits = (first, second) if are_t2s[0] else (second, first)
    return StatedFiles(t2s=t2s, sovits=sovits)


def _artifact_files(directory: Path) -> ModelFiles:
    for name in (WEIGHTS, SETTINGS):
        if not (directory / name).is_file():
            raise ModelError(f"the artifact '{directory}' holds no {name}; compress it again")
    others = (p for p in sorted(directory.iterdir()) if p.name not in {WEIGHTS, MANIFEST_NAME})
    return ModelFiles(weights=(directory / WEIGHTS,), settings=tuple(others))


def _folder_files(
    folder: Path, accepted: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")
) -> ModelFiles:
    """Return a network's weights, the first there are of the accepted names, and its settings."""
    weights = next((folder / name for name in accepted if (folder / name).is_file()), None)
    if weights is None or not (folder / "config.json").is_file():
        lacking = "config.json" if weights is not None else " or ".join(accepted)
        raise ModelError(
            f"'{folder}' holds no {lacking}; fetch the folder '{folder.name}' again from "
            "https://huggingface.co/lj1995/GPT-SoVITS"
        )
    settings = [p for p in sorted(folder.iterdir()) if p.suffix in {".json", ".txt"}]
    return ModelFiles(weights=(weights,), settings=tuple(settings))
