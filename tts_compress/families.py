"""The supported systems.

A new one is an entry of `_OWN`, or of another package's entry points in the group
`tts_compress.families`, each of which names a `Family`. Nothing is imported here: functions and
constants are named, and found when a model is opened.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from tts_compress.errors import TTSCompressWarning, reason

__all__ = [
    "Family",
    "accepted_specs",
    "families",
    "family_names",
    "model_specs",
    "torch_families",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A system whose models can be opened."""

    name: str
    """Name before the colon in specs, and in recipes and manifests."""

    package: str
    """Package or module that has the function below."""

    opener: str
    """Its function that opens a model: `(location, spec, manifest) -> Model`; the location follows
    the colon in the spec, and the manifest is None where the model is no artifact."""

    location: str
    """Description of the location, for help and errors."""

    suffixes: tuple[str, ...] = ()
    """Endings of files that are models of this family where a spec names none."""

    beside: str = ""
    """Suffix of the file beside such a file that tells apart families with a common suffix: `.json`
    for `voice.onnx.json`."""

    shipped: tuple[str, ...] = ()
    """Names of models that come with the package."""

    heavy: str | None = None
    """Name, below `root()`, of the module whose blocks take most of the time, in torch."""

    upstream: str | None = None
    """The `Upstream` constant in its `upstream.py`, for a system that runs from a clone."""


_MODELS = "tts_compress.models"
_OWN = (
    Family(
        name="piper",
        package=f"{_MODELS}.piper",
        opener="open_piper",
        location="'demo', a Piper voice's .onnx, a Piper training .ckpt",
        suffixes=(".onnx", ".ckpt"),
        beside=".json",
        shipped=("demo",),
    ),
    Family(
        name="f5-tts",
        package=f"{_MODELS}.f5",
        opener="open_f5",
        location="a directory or a hub's name",
        heavy="transformer",
    ),
    Family(
        name="parler-tts",
        package=f"{_MODELS}.parler",
        opener="open_parler",
        location="a directory or a hub's name",
        heavy="decoder",
    ),
    Family(
        name="gpt-sovits",
        package=f"{_MODELS}.gpt_sovits",
        opener="open_gpt_sovits",
        location="CONFIG.yaml or T2S.ckpt,SOVITS.pth",
        heavy="t2s",
        upstream="GPT_SOVITS",
    ),
    Family(
        name="naturalspeech2",
        package=f"{_MODELS}.naturalspeech2",
        opener="open_naturalspeech2",
        location="a checkpoint's directory",
        heavy="diffusion",
        upstream="AMPHION",
    ),
    Family(
        name="onnx",
        package=f"{_MODELS}.onnx_model",
        opener="open_graph",
        location="the path of a bare graph",
    ),
)


@cache
def families() -> dict[str, Family]:
    """Return the known families by name: this package's, then those of other packages."""
    found = {family.name: family for family in _OWN}
    for point in entry_points(group="tts_compress.families"):
        try:
            family: Family = point.load()
            found.setdefault(family.name, family)
        except Exception as error:  # anything can be wrong in another package
            warnings.warn(
                f"the family '{point.name}' of another package is left out: {reason(error)}",
                TTSCompressWarning,
                stacklevel=2,
            )
    return found


def family_names() -> list[str]:
    """Return the names in recipes and manifests: the families, and `module` for torch modules."""
    return [*families(), "module"]


def torch_families() -> dict[str, Family]:
    """Return those that run in torch."""
    return {name: family for name, family in families().items() if family.heavy is not None}


def model_specs() -> str:
    """Return the specs that name a model that speaks, for people."""
    known = families().values()
    plain = [family.location for family in known if family.suffixes]
    named = [f"'{family.name}:' and {family.location}" for family in torch_families().values()]
    return ", ".join([*plain, "an artifact's directory", *named])


def accepted_specs() -> str:
    """Return the specs that name any model, for errors."""
    return f"{model_specs()}, or 'onnx:' and {families()['onnx'].location}"
