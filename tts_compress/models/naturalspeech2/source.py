"""Sources of a NaturalSpeech2 model: a checkpoint of Amphion's, or a saved folder."""

import os
from dataclasses import dataclass
from pathlib import Path

from tts_compress.errors import ModelError
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.naturalspeech2.settings import (
    SETTINGS,
    NS2Options,
    NS2Settings,
    check_settings,
    read_config,
    read_settings,
)
from tts_compress.models.torch_model import WEIGHTS

REFERENCE = "reference"
"""The name, before its ending, of the recording to speak by."""

CODEC = "encodec_24khz-d7cc33bc.th"
"""EnCodec's weights, as its authors publish them."""

CODEC_VARIABLE = "TTS_COMPRESS_ENCODEC"
"""The environment variable that names them."""

_CHECKPOINTS = ("pytorch_model.bin", WEIGHTS)
"""Names of checkpoints by older and newer versions of Amphion's trainer."""

_CONFIGS = ("args.json", "exp_config.json")
_DEFAULT_CONFIG = "egs/tts/NaturalSpeech2/exp_config.json"
_FORMATS = (".wav", ".flac", ".ogg", ".mp3")


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Source:
    """A model's files.

    Raises:
        ModelError: Raised by its methods: a file is missing, unreadable, or not what it should be.
    """

    directory: Path
    """A checkpoint's folder, or a saved model's."""

    @property
    def is_saved(self) -> bool:
        """True if `save` wrote the folder: the codec's weights are among the others then."""
        return (self.directory / SETTINGS).is_file()

    @property
    def options(self) -> NS2Options:
        """Options of the solver: a saved model's, or upstream's."""
        return read_settings(self.directory / SETTINGS).options if self.is_saved else NS2Options()

    @property
    def prompt(self) -> Prompt:
        """The recording beside the weights, if there is one."""
        paths = [self.directory / f"{REFERENCE}{suffix}" for suffix in _FORMATS]
        return Prompt(audio=next((path for path in paths if path.is_file()), None))

    def checkpoint(self) -> Path:
        """Return the file with the weights."""
        if not self.directory.is_dir():
            problem = "is no folder" if self.directory.exists() else "is not there"
            raise ModelError(f"'{self.directory}' {problem}; give the folder of a checkpoint")
        names = (WEIGHTS,) if self.is_saved else _CHECKPOINTS
        for name in names:
            if (self.directory / name).is_file():
                return self.directory / name
        inside = sorted(self.directory.glob(f"**/{_CHECKPOINTS[0]}"))[-1:]
        hint = f"; '{inside[0].parent}' does" if inside else ""
        raise ModelError(f"'{self.directory}' holds no {' or '.join(names)}{hint}")

    def config(self) -> Path | None:
        """Return the file with the settings; None where only the clone has one.

        Amphion keeps one for all checkpoints of an experiment, two folders above them.
        """
        if self.is_saved:
            return self.directory / SETTINGS
        folder = self.directory.resolve()
        for place in (folder, *folder.parents[:2]):
            for name in _CONFIGS:
                if (place / name).is_file():
                    return place / name
        return None

    def settings(self, clone: Path) -> NS2Settings:
        """Return the settings that the model is built from."""
        if self.is_saved:
            return read_settings(self.directory / SETTINGS)
        config = self.config() or clone / _DEFAULT_CONFIG
        return check_settings(read_config(config, clone), f"'{config}'")

    def codec(self) -> Path:
        """Return the file with EnCodec's weights; upstream would download it."""
        named = os.environ.get(CODEC_VARIABLE)
        if named:
            path = Path(named).expanduser()
            if not path.is_file():
                raise ModelError(f"{CODEC_VARIABLE} is {named!r}, which is no file; name {CODEC}")
            return path
        places = [self.directory / CODEC, _hub() / CODEC]
        for path in places:
            if path.is_file():
                return path
        raise ModelError(
            f"EnCodec's weights are missing: there is no '{places[0]}' and no '{places[1]}'; fetch "
            f"https://dl.fbaipublicfiles.com/encodec/v0/{CODEC} into one of these folders, or name "
            f"the file by the environment variable {CODEC_VARIABLE}"
        )

    def files(self) -> ModelFiles:
        """Return the model's files."""
        weights = (self.checkpoint(),) if self.is_saved else (self.checkpoint(), self.codec())
        settings = (self.config(), self.prompt.audio)
        return ModelFiles(weights=weights, settings=tuple(p for p in settings if p is not None))


def find_source(place: str) -> NS2Source:
    """Return the files in the folder of a checkpoint or of a saved model."""
    source = NS2Source(directory=Path(place))
    source.checkpoint()
    return source


def _hub() -> Path:
    """Return the folder of `torch.hub`'s downloads, such as encodec's."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("TORCH_HOME") or f"{cache}/torch"
    return Path(home).expanduser() / "hub" / "checkpoints"
