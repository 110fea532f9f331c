"""The supported systems. One that is a package states itself as its `FAMILY`.

The packages in `tts_compress/models/` are found by looking there; other distributions name their
`Family` by an entry point of the group `tts_compress.families`. Functions that open models are
named here, and imported when one is opened.
"""

import pkgutil
import re
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path

from tts_compress.errors import MissingExtraError, TTSCompressWarning, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A system that people run from a clone of its repository."""

    family: str
    """Name of its family, such as `gpt-sovits`."""

    name: str
    """Its authors' name for it, for people."""

    repository: str
    """URL to clone it from."""

    commit: str
    """The commit that was tested."""

    variable: str
    """The environment variable that names the clone."""

    extra: str
    """The extra of this project that installs what it imports."""

    markers: tuple[str, ...]
    """Files that every clone has, relative to its root."""

    paths: tuple[str, ...]
    """Folders its code imports from, relative to the root, first one first."""

    modules: tuple[str, ...]
    """Top-level modules it brings; at most one clone's can be imported into a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A system whose models can be opened."""

    name: str
    """Name before the colon in specs, and in recipes and manifests."""

    opener: str
    """`package.module:function` of what opens a model: `(location, spec, manifest) -> Model`; the
    location follows the colon in the spec, and the manifest is None where it was not read. For a
    torch family it is its model class's `open`."""

    location: str
    """Description of the location, for help and errors."""

    suffixes: tuple[str, ...] = ()
    """Endings of files that are models of this family where a spec names none."""

    beside: str = ""
    """Suffix of the file beside such a file, which distinguishes families with a common suffix:
    `.json` for `voice.onnx.json`."""

    recognizer: str = ""
    """`package.module:function` that returns True for such a file of this family, given its path;
    it takes the place of `beside`."""

    shipped: tuple[str, ...] = ()
    """Names of models that come with the package."""

    extra: str = "torch"
    """The extra of this project that installs what its models are opened with."""

    upstream: Upstream | None = None
    """The clone that it runs from; None for a system that is installed."""

    def missing(self, error: ImportError) -> MissingExtraError:
        """Return the error that names the package an import failed for, and what installs it.

        Libraries that import late wrap the reason in an error that names nothing, and where a
        package looks up the version of one that is not there, the name is a sentence.
        """
        cause: BaseException | None = error
        while cause is not None:
            name = cause.name if isinstance(cause, ImportError) else None
            if name and name.replace(".", "_").isidentifier():
                return MissingExtraError(name, self.extra)
            cause = cause.__cause__
        return MissingExtraError(self.name, self.extra)


_PIPER = Family(
    name="piper",
    opener="tts_compress.models.piper:open_piper",
    location="'demo', a Piper voice's .onnx, a Piper training .ckpt",
    extra="piper",
    suffixes=(".onnx", ".ckpt"),
    beside=".json",
    shipped=("demo",),
)
_ONNX = Family(
    name="onnx",
    opener="tts_compress.models.onnx_model:open_graph",
    location="the path of a bare graph",
)


@cache
def families() -> dict[str, Family]:
    """Return the known families by name: this package's, then those of other distributions."""
    models = str(Path(__file__).with_name("models"))
    packages = [module.name for module in pkgutil.iter_modules([models]) if module.ispkg]
    modules = [import_module(f"tts_compress.models.{name}") for name in packages]
    packaged = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    by_name: dict[str, Family] = {family.name: family for family in (_PIPER, *packaged, _ONNX)}
    for point in entry_points(group="tts_compress.families"):
        try:
            family: Family = point.load()
            by_name.setdefault(family.name, family)
        except Exception as error:  # anything can be wrong in another package
            warnings.warn(
                f"the family '{point.name}' of another package is left out: {reason(error)}",
                TTSCompressWarning,
                stacklevel=2,
            )
    return by_name


def family_names() -> list[str]:
    """Return the names in recipes and manifests: the families, and `module` for torch modules."""
    return [*families(), "module"]


def accepted_specs(spec: str = "") -> str:
    """Return the specs that an error asks for: those of the system that a text names, or all.

    Args:
        spec: A text that names no model, such as `Parler-TTS` or `parler-tts/parler-tts-mini-v1`.
    """
    front, colon, location = spec.partition(":")
    parts = re.sub(r"[\s_]+", "-", front.lower()).split("/")
    named = [name for part in parts for name in families() if name in part]
    similar = (get_close_matches(part, families(), n=1, cutoff=0.75) for part in parts)
    for name in chain(named, *similar):
        family = families()[name]
        if colon or ("/" in spec and "hub" in family.location):
            return f"'{name}:{location or spec}'"
        return family.location if family.suffixes else f"'{name}:' and {family.location}"
    plain = ", ".join(family.location for family in families().values() if family.suffixes)
    systems = ", ".join(f"{name}:" for name, family in families().items() if not family.suffixes)
    return (
        f"{plain}, an artifact's directory, or a system and its model ({systems}); all forms: "
        "`tts-compress --help`"
    )
