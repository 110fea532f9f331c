"""The saved result: a directory that appears whole or not at all, and its manifest."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tts_compress.errors import ArtifactError, file_errors, reason
from tts_compress.folders import spare_folder
from tts_compress.plain import html_table
from tts_compress.reading import parse_json, read_text

MANIFEST_NAME = "manifest.json"
CARD_NAME = "README.md"
REPOSITORY = "https://github.com/tts-compress/tts-compress"
"""Where this program comes from, as cards say."""

_FORMAT_VERSION = 1
_DEPTH = 2
"""Most parts of a file's name in an artifact: a folder and the name."""

_SHOWN = 3
"""Names in a message."""

_OF_SYSTEMS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
"""Files that whoever looks into a folder leaves there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The model that was compressed."""

    spec: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """The decision for one operator."""

    module: str
    """Dotted module name, such as `dec.resblocks.0.convs.1`."""

    operator: str
    weights: str
    activations: str
    parameters: int
    """Number of weights, biases not counted."""

    decides_durations: bool = False
    """True if a graph's operator decides durations alone; omitted from the file if false."""

    reason: str = ""
    """Reason why a layer keeps FP32, of a graph only where no rule could have changed that; omitted
    from the file if empty."""

    def record(self) -> "LayerRecord":
        """Return what a manifest holds of it, where it is more."""
        return LayerRecord(**{item.name: getattr(self, item.name) for item in fields(LayerRecord)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """Texts or arrays on which ranges of activations were observed."""

    set: str
    sha256: str
    """SHA-256 of the texts that were used, joined by newlines, or of the file of arrays."""

    utterances: int
    observer: str
    seed: int
    speakers: tuple[str, ...] = ()
    """Names of the speakers that spoke the texts in turn; empty, and omitted from the file, for a
    voice with one speaker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """Training of a compressed model on the outputs of its original."""

    steps: int
    """Updates of the weights."""

    seed: int
    """Seed of the order of examples, and of the noise they were recorded with."""

    before: dict[str, float]
    """Terms of the loss on held-out examples before training, after quantization."""

    after: dict[str, float]
    """Terms of the loss on held-out examples after training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of the finished graphs beside the original ones, on the machine that made them."""

    snr_db: float | None
    """Lowest signal-to-noise ratio of their outputs, at most 200 dB; None where none was
    comparable."""

    arithmetic: dict[str, int]
    """Layers by the arithmetic that multiplies them in the graphs as onnxruntime optimized them:
    integers, float16 or FP32."""

    reason: str | None = None
    """Reason why a graph's outputs were not compared."""


def join_runs(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the record of several graphs; None where there is none."""
    if not runs:
        return None
    snrs = [run.snr_db for run in runs if run.snr_db is not None]
    arithmetic = sum((Counter(run.arithmetic) for run in runs), Counter[str]())
    return RunRecord(
        snr_db=min(snrs, default=None),
        arithmetic=dict(arithmetic),
        reason=next((run.reason for run in runs if run.reason), None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Record of how an artifact was made, without time stamps."""

    family: str
    scheme: str
    source: Source
    recipe: dict[str, Any]
    layers: tuple[LayerRecord, ...]
    counts: dict[str, int]
    """Operators by decision, counted in the finished graph: `Conv weights/activations` -> n."""

    calibration: CalibrationRecord | None
    seed: int
    environment: dict[str, Any]
    training: TrainingRecord | None = None
    """None where nothing was trained."""

    run: RunRecord | None = None
    """None where the model is no ONNX graph."""

    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every other file of the artifact, by name."""

    size_bytes: int = 0
    """Bytes of the model file, comparable to `source.size_bytes`."""

    format_version: int = _FORMAT_VERSION

    def __repr__(self) -> str:
        return (
            f"Manifest({self.scheme} of {self.source.spec!r}, {len(self.layers)} layers, "
            f"{self._sizes()})"
        )

    def _sizes(self) -> str:
        """Return the sizes for people; before the model is saved, only the original's."""
        sizes = filter(None, (self.source.size_bytes, self.size_bytes))
        return " → ".join(f"{size / 1e6:.2f} MB" for size in sizes)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        facts = [
            ("scheme", self.scheme),
            ("made of", f"{self.source.spec} ({self.family})"),
            ("size", self._sizes()),
            *((f"{count} ×", label) for label, count in self.counts.items()),
        ]
        return html_table((), facts)

    def to_json(self) -> str:
        """Return the manifest as stable, readable JSON."""
        content = asdict(self)
        if self.calibration is not None and not self.calibration.speakers:
            del content["calibration"]["speakers"]
        for layer in content["layers"]:
            for key in ("decides_durations", "reason"):
                if not layer[key]:
                    del layer[key]
        return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> "Manifest":
        """Return the manifest that `to_json` wrote."""
        from pydantic import TypeAdapter

        try:
            raw = parse_json(text)
            if raw["format_version"] != _FORMAT_VERSION:
                raise ArtifactError(
                    f"manifest has format version {raw['format_version']!r}; "
                    f"this release reads {_FORMAT_VERSION}: upgrade tts-compress"
                )
            return TypeAdapter(Manifest).validate_python(raw)
        except (ValueError, KeyError, TypeError) as error:
            problem = f"{type(error).__name__}: {reason(error)}"
            raise ArtifactError(f"not a manifest: {problem}") from error


def read_manifest(directory: Path) -> Manifest:
    """Read an artifact's manifest and check every file against its hash."""
    path = directory / MANIFEST_NAME
    try:
        manifest = Manifest.from_json(read_text(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"'{directory}' is no artifact: it has no {MANIFEST_NAME}; give a folder that "
            "`tts-compress quantize` wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read '{path}': {reason(error)}") from error
    wrong = []
    for name, digest in manifest.files.items():
        file = directory / name
        if not _is_inside(name):
            wrong.append(f"{name!r} is not a plain file name, or one in a folder")
        elif not file.is_file():
            wrong.append(f"'{name}' is missing")
        elif sha256_of(file) != digest:
            wrong.append(f"'{name}' was altered")
    if wrong:
        raise ArtifactError(f"artifact '{directory}': {'; '.join(wrong)}; compress the model again")
    return manifest


def with_files(manifest: Manifest, directory: Path, *model_files: str) -> Manifest:
    """Return the manifest completed with the hashes and size of the files in a directory."""
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    names = {path.relative_to(directory).as_posix(): path for path in paths}
    files = {name: sha256_of(path) for name, path in names.items() if name != MANIFEST_NAME}
    size_bytes = sum((directory / name).stat().st_size for name in model_files)
    return replace(manifest, files=files, size_bytes=size_bytes)


def _is_inside(name: str) -> bool:
    """Return True for the name of a file in an artifact, or in a folder of it."""
    parts = name.split("/")
    plain = all(part not in {"", ".", ".."} and Path(part).name == part for part in parts)
    return len(parts) <= _DEPTH and plain


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_directory(target: Path, *, marker: str, force: bool = False) -> Iterator[Path]:
    """Yield a directory to write into that becomes `target` when the block ends without error.

    The work happens beside `target`, so that the last step is a rename on one file system.
    Leftovers of a killed run are removed by the next one.

    Args:
        target: The directory to create; a link to one stays, and what it leads to is replaced.
        marker: A file that only our own directories of this kind have.
        force: Replace an existing `target` that has the marker.
    """
    target = _behind_link(target)
    check_replaceable(target, marker, force=force)
    with file_errors(f"cannot write '{target}'"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with spare_folder(target.parent) as folder:
            partial, old = folder / target.name, folder / f"{target.name}-old"
            partial.mkdir()
            yield partial
            if os.path.lexists(target):  # also where another made it meanwhile
                _check_ours(target, marker, force=force)
                target.replace(old)
            try:
                partial.replace(target)
            except OSError:
                if old.exists():
                    old.replace(target)
                raise


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to that becomes `target` when the block ends without error.

    A device or a pipe is written to directly; a link stays, and the file it leads to is replaced.
    """
    with file_errors(f"cannot write '{target}'"):
        if target.exists() and not target.is_file():
            yield target
            return
        target = target.resolve() if target.is_symlink() else target
        with spare_folder(target.parent) as folder:
            yield (partial := folder / target.name)
            partial.replace(target)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file that is never seen half-written."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    """Append to a text file, which is created where there is none."""
    with file_errors(f"cannot write '{path}'"), path.open("a", encoding="utf-8") as file:
        file.write(text)


def check_replaceable(target: Path, marker: str, *, force: bool) -> None:
    """Refuse an output directory that cannot be written, or exists and must not be replaced.

    Work of minutes goes before its result is written, so the file system is asked by a trial.

    Args:
        target: The directory to create.
        marker: A file that only our own directories of this kind have.
        force: Allow one of them to be replaced.
    """
    target = _behind_link(target)
    absolute = target.absolute()
    above = next((path for path in absolute.parents if os.path.lexists(path)), absolute)
    if not above.is_dir():
        raise ArtifactError(
            f"cannot write '{target}': '{above}' is not a directory; choose another output"
        )
    if os.path.lexists(target):
        _check_ours(target, marker, force=force)
    with file_errors(f"cannot write '{target}'"), spare_folder(above) as trial:
        (trial / absolute.name).mkdir()


def _behind_link(target: Path) -> Path:
    """Return the directory that a link leads to, and anything else as it is."""
    with file_errors(f"cannot write '{target}'"):
        return target.resolve() if target.is_symlink() and target.is_dir() else target


def _check_ours(target: Path, marker: str, *, force: bool) -> None:
    """Refuse what exists, unless it is an empty directory or may be replaced."""
    if not target.is_dir():
        raise ArtifactError(f"'{target}' exists and is not a directory; choose another output")
    # `Path.is_mount` is wrong about "." in Python 3.11, and not there on Windows before 3.12.
    if (is_here := target.absolute() == Path.cwd()) or os.path.ismount(target):
        why = "the current directory" if is_here else "a mount point"
        raise ArtifactError(
            f"'{target}' is {why}, which cannot be replaced; choose a directory in it"
        )
    with file_errors(f"cannot read '{target}'"):
        empty = not any(target.iterdir())
    if empty:
        return
    if not force:
        raise ArtifactError(f"'{target}' exists; use --force to replace it, or another output")
    if not (target / marker).is_file():
        raise ArtifactError(
            f"'{target}' has no {marker}, so it is not ours to replace; choose another output"
        )
    if marker == MANIFEST_NAME:
        refuse_others(target, _named(target))


def _named(directory: Path) -> set[str]:
    """Return the names of the files that a manifest of any version names, and of a card of ours.

    None in a directory whose manifest is another program's.
    """
    try:
        content = parse_json(read_text(directory / MANIFEST_NAME))
        named = {MANIFEST_NAME, *content["files"]} if content["format_version"] else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    card = directory / CARD_NAME
    with file_errors(f"cannot read '{card}'"):
        is_ours = card.is_file() and REPOSITORY in card.read_text("utf-8", "replace")
    return named | {CARD_NAME} if is_ours else named


def refuse_others(directory: Path, named: Collection[str]) -> None:
    """Refuse a directory, which is to be replaced, with files that are none of those named."""
    with file_errors(f"cannot read '{directory}'"):
        files = [path for path in sorted(directory.rglob("*")) if not path.is_dir()]
    written = (path for path in files if path.name not in _OF_SYSTEMS)
    names = (path.relative_to(directory).as_posix() for path in written)
    if others := [name for name in names if name not in named]:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise ArtifactError(
            f"'{directory}' holds {', '.join(map(repr, others[:_SHOWN]))}{more}, which "
            "this program did not write; move it elsewhere, or choose another output"
        )
