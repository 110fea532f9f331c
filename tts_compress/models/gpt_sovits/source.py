"""Sources of a GPT-SoVITS model: upstream's configuration, its two files, or an artifact."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from tts_compress.artifact import MANIFEST_NAME
from tts_compress.errors import ModelError
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.checkout import find_checkout
from tts_compress.models.files import (
    check_duration,
    find_prompt,
    read_json,
    read_yaml,
)
from tts_compress.models.gpt_sovits import GPT_SOVITS
from tts_compress.models.gpt_sovits.checkpoint import (
    T2S_SYMBOLS,
    VERSIONS,
    is_t2s,
    read_sovits,
    read_t2s,
)
from tts_compress.models.options import Options
from tts_compress.models.torch_model import WEIGHTS

SETTINGS = "settings.json"  # the file of an artifact that holds them

_KEYS = {  # keys of `tts_infer.yaml`, by the network
    "t2s": "t2s_weights_path",
    "vits": "vits_weights_path",
    "bert": "bert_base_path",
    "hubert": "cnhuhbert_base_path",
}

_FOLDER = "GPT_SoVITS/pretrained_models"
_WEIGHTS = (WEIGHTS, "pytorch_model.bin", "bigvgan_generator.pt")

_LANGUAGES = (
    "auto", "auto_yue", "en", "zh", "ja", "yue", "ko", "all_zh", "all_ja", "all_yue", "all_ko",
)  # fmt: skip
"""Upstream's; `auto` detects the language, `all_zh` takes English letters for Chinese."""

_DETECTED = {"auto": (), "auto_yue": ("zh",)}
"""Choices that detect the language, and the languages that are taken for others then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsOptions(Options):
    """Settings of inference, by the names and with the defaults of upstream's `TTS.run`."""

    limits: ClassVar = {
        "top_k": (1, 1025),
        "top_p": (0.01, 1),
        "temperature": (0.01, 10),
        "repetition_penalty": (0.1, 10),
        "speed_factor": (0.1, 10),
        "sample_steps": (1, 1000),
    }
    choices: ClassVar = {
        "text_lang": _LANGUAGES,
        "prompt_lang": _LANGUAGES,
        "text_split_method": tuple(f"cut{number}" for number in range(6)),
    }

    text_lang: str = "auto"
    prompt_lang: str = "auto"  # language of the reference recording
    text_split_method: str = "cut1"  # `cut0` not at all, `cut1` after four sentences, …
    top_k: int = 15
    top_p: float = 1.0
    temperature: float = 1.0
    repetition_penalty: float = 1.35  # divides the scores of tokens drawn before; 1 does nothing
    speed_factor: float = 1.0
    sample_steps: int = 32  # steps of v3's and v4's solver; each runs the transformer once

    def languages(self, version: str) -> tuple[str, ...]:
        """Return the languages of the texts: the one that was chosen, or all that a version has."""
        if self.text_lang not in _DETECTED:
            return (self.text_lang.removeprefix("all_"),)
        spoken = ("zh", "en", "ja") if version == "v1" else ("zh", "en", "ja", "ko", "yue")
        return tuple(name for name in spoken if name not in _DETECTED[self.text_lang])


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsSettings:
    """Settings that upstream's networks are built from, as plain data."""

    version: str  # one of `VERSIONS`
    t2s: dict[str, Any]  # `config` of the T2S checkpoint
    sovits: dict[str, Any]  # `config` of the synthesizer's checkpoint
    bert: dict[str, Any]  # `config.json` of the text encoder
    hubert: dict[str, Any]  # `config.json` of the speech encoder
    vocoder: dict[str, Any] | None = None  # arguments of v3's and v4's vocoder
    options: dict[str, Any] = field(default_factory=dict)  # those that are not upstream's defaults

    def __post_init__(self) -> None:
        if self.version not in tuple(VERSIONS):  # which may be no text at all
            accepted = ", ".join(VERSIONS)
            raise ModelError(f"there is no GPT-SoVITS {self.version!r}; accepted: {accepted}")
        if VERSIONS[self.version].vocoder and self.vocoder is None:
            raise ModelError(f"the settings of this {self.version} lack those of the vocoder")

    def to_json(self) -> str:
        """Return them as stable, readable JSON."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def sample_rate_of(version: str, sovits: Mapping[str, Any]) -> int:
    """Return a version's sample rate, Hz; without a vocoder the synthesizer's settings state it."""
    vocoder = VERSIONS[version].vocoder_configs
    rate = vocoder["sr"] if vocoder else sovits["data"].get("sampling_rate")
    if not isinstance(rate, int) or rate <= 0:
        raise ModelError(f"the SoVITS model states the sampling rate {rate!r}, not Hz")
    return rate


def read_settings(path: Path) -> GptSovitsSettings:
    """Return the settings of an artifact."""
    stated = read_json(path)
    names = {each.name for each in fields(GptSovitsSettings)}
    if not isinstance(stated, dict) or stated.keys() != names:
        raise ModelError(f"cannot read '{path}': it must have {', '.join(sorted(names))}")
    return GptSovitsSettings(**stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsSource:
    """A model's files: an artifact's folder, or upstream's own."""

    directory: Path  # an artifact's, or that of the configuration, or else of the T2S model
    version: str
    sample_rate: int
    settings: GptSovitsSettings | None = None  # an artifact's
    named: Mapping[str, Path] = field(default_factory=dict)  # upstream's files, by the network
    is_lora: bool = False  # True if the synthesizer is changes to a published one
    t2s: Mapping[str, Any]  # the language model's settings

    @property
    def options(self) -> GptSovitsOptions:
        """Inference options that it was saved with, or else upstream's."""
        stated = self.settings.options if self.settings else {}
        return GptSovitsOptions().changed(stated, f"'{self.directory / SETTINGS}'")

    @property
    def prompt(self) -> Prompt:
        """The recording in the folder, and its text."""
        return find_prompt(self.directory)

    def networks(self) -> dict[str, Path]:
        """Return upstream's files and folders by the network, published ones if not named.

        The text encoder `bert` reads Chinese only, the speech encoder `hubert` the recording; some
        versions have a speaker verification model `sv` or a `vocoder`; LoRA weights change `base`.
        """
        version = VERSIONS[self.version]
        published = {
            "bert": "chinese-roberta-wwm-ext-large",
            "hubert": "chinese-hubert-base",
            "sv": version.speaker,
            "vocoder": version.vocoder,
            "base": version.vits if self.is_lora else None,
        }
        needed = {name: path for name, path in published.items() if path and name not in self.named}
        return {**self.named, **{name: _published(path) for name, path in needed.items()}}

    def files(self) -> ModelFiles:
        """Return the model's files, refusing a folder that lacks some of them."""
        if self.settings is None:
            paths = self.networks().values()
            alone = ModelFiles(weights=tuple(path for path in paths if path.is_file()))
            listed = [alone, *(_folder_files(path) for path in paths if not path.is_file())]
            return ModelFiles(
                weights=tuple(path for each in listed for path in each.weights),
                settings=tuple(path for each in listed for path in each.settings),
            )
        for name in (WEIGHTS, SETTINGS):
            if not (self.directory / name).is_file():
                raise ModelError(f"artifact '{self.directory}' holds no {name}; compress it again")
        others = sorted(self.directory.iterdir())
        settings = (path for path in others if path.name not in {WEIGHTS, MANIFEST_NAME})
        return ModelFiles(weights=(self.directory / WEIGHTS,), settings=tuple(settings))


def find_source(location: str) -> GptSovitsSource:
    """Return a model's files; of the clone, no more is needed than what they name in it.

    Args:
        location: An artifact's folder, upstream's `tts_infer.yaml`, or the T2S model's and the
            synthesizer's path with a comma between, in either order.
    """
    path = Path(location)
    if (path / MANIFEST_NAME).is_file():
        settings = read_settings(path / SETTINGS)
        return GptSovitsSource(
            directory=path,
            settings=settings,
            version=settings.version,
            sample_rate=sample_rate_of(settings.version, settings.sovits),
            t2s=settings.t2s.get("model", {}),
        )
    if path.suffix in {".yaml", ".yml"}:
        named = _read_config(path)
    elif "," in location:
        named = _two_files(location)
    else:
        problem = f"holds no {MANIFEST_NAME}" if path.is_dir() else "is no GPT-SoVITS model"
        accepted = "'CONFIG.yaml', 'T2S.ckpt,SOVITS.pth' or an artifact's folder"
        raise ModelError(f"'{location}' {problem}; give {accepted}")
    sovits = read_sovits(named["vits"])
    version, needed = sovits.version, VERSIONS[sovits.version].symbols
    t2s = read_t2s(named["t2s"])
    symbols = len(t2s.tensors[T2S_SYMBOLS])
    # Upstream runs two that do not match, which speak gibberish or fail in the middle of a text.
    is_first = symbols < VERSIONS["v2"].symbols  # v1's has 512
    if is_first != (version == "v1") or symbols < needed:
        trained = "v1" if is_first else "v2 and newer"
        raise ModelError(
            f"'{named['t2s']}' is a T2S model of {symbols} symbols, as those of {trained} are, and "
            f"the SoVITS model is {version}, whose texts are made of {needed}; "
            "give two of the same version"
        )
    return GptSovitsSource(
        directory=(path if path.is_file() else named["t2s"]).parent,
        version=version,
        sample_rate=sample_rate_of(version, sovits.config),
        is_lora=sovits.lora_rank is not None,
        t2s=t2s.config["model"],
        named=named,
    )


def _published(name: str) -> Path:
    """Return a published file or folder, named below the clone's folder of pretrained models."""
    path = find_checkout(GPT_SOVITS).root / _FOLDER / name
    if not path.exists():
        raise ModelError(
            f"there is no '{path}'; upstream publishes it at "
            f"https://huggingface.co/lj1995/GPT-SoVITS: fetch '{name}' into {_FOLDER} of the clone"
        )
    return path


def _two_files(location: str) -> dict[str, Path]:
    """Return the files that a comma is between; a path may have commas of its own."""
    parts = location.split(",")
    pairs = [(Path(",".join(parts[:i])), Path(",".join(parts[i:]))) for i in range(1, len(parts))]
    first, second = next((p for p in pairs if p[0].is_file() and p[1].is_file()), pairs[0])
    are_t2s = is_t2s(first), is_t2s(second)
    if are_t2s[0] == are_t2s[1]:
        kind = "T2S models" if are_t2s[0] else "no T2S models"
        raise ModelError(
            f"'{first}' and '{second}' are both {kind}; give one T2S model (.ckpt) and one SoVITS "
            "model (.pth)"
        )
    t2s, sovits = (first, second) if are_t2s[0] else (second, first)
    return {"t2s": t2s, "vits": sovits}


def _read_config(path: Path) -> dict[str, Path]:
    """Return the files that the section `custom` of a `tts_infer.yaml` names.

    Relative paths are looked for beside it, then in the clone it lies in, then in the one that
    the environment names. Where it names no weights, those that upstream publishes for
    its version are meant.
    """
    content = read_yaml(path)
    section = content.get("custom") if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise ModelError(
            f"'{path}' has no section 'custom'; it is to be like upstream's "
            "GPT_SoVITS/configs/tts_infer.yaml"
        )
    version = section.get("version")
    if not isinstance(version, str) or version not in VERSIONS:
        raise ModelError(
            f"'{path}': version is {version!r}; accepted are {', '.join(map(repr, VERSIONS))}"
        )
    for key in _KEYS.values():
        name = section.get(key)
        if name is not None and (not isinstance(name, str) or "\0" in name):
            raise ModelError(f"'{path}': {key} is {name!r}; give a path")
    paths = {ours: _find(path, section[key]) for ours, key in _KEYS.items() if section.get(key)}
    for ours in {"t2s", "vits"} - paths.keys():
        paths[ours] = _published(getattr(VERSIONS[version], ours))
    return paths


def _find(path: Path, name: str) -> Path:
    """Return the file that a configuration names."""
    folder, clone = path.resolve().parent, os.environ.get(GPT_SOVITS.variable)
    around = [p for p in folder.parents if all((p / m).is_file() for m in GPT_SOVITS.markers)]
    places = [folder, *around[:1], *([Path(clone).expanduser().resolve()] if clone else [])]
    for root in places:
        with suppress(OSError, RuntimeError):  # a name too long to be one, an unknown home
            if (candidate := root / Path(name).expanduser()).exists():
                return candidate
    where = " or ".join(f"'{root}'" for root in places)
    raise ModelError(
        f"'{path}' names '{name}', which is not in {where}; relative names are looked for there: "
        f"name the clone by --checkout DIR or {GPT_SOVITS.variable}, or give an absolute path"
    )


def _folder_files(folder: Path) -> ModelFiles:
    """Return a published network's weights and settings."""
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None or not (folder / "config.json").is_file():
        lacking = "config.json" if weights is not None else " or ".join(_WEIGHTS)
        raise ModelError(
            f"'{folder}' holds no {lacking}; fetch the folder '{folder.name}' again from "
            "https://huggingface.co/lj1995/GPT-SoVITS"
        )
    settings = [p for p in sorted(folder.iterdir()) if p.suffix in {".json", ".txt"}]
    return ModelFiles(weights=(weights,), settings=tuple(settings))


def check_recording(path: Path) -> None:
    """Refuse a recording of a length that upstream does not take."""
    check_duration(path, (3.0, 10.0))
