"""Systems we can load: `base.py` is the protocol, `tts_compress/families.py` the list."""

from os import PathLike
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from tts_compress.artifact import MANIFEST_NAME, Manifest, read_manifest
from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.families import Family, accepted_specs, families
from tts_compress.models.base import Model, TTSModel
from tts_compress.models.execution import PROCESSOR, Execution

__all__ = ["load", "open_model"]


def load(
    spec: str | Path,
    *,
    device: str = PROCESSOR.device,
    matmul_precision: Literal["highest", "high", "medium"] = "highest",
    provider: str = PROCESSOR.provider,
) -> TTSModel:
    """Return the speaking model that a spec names; weights are read when they are first needed.

    Args:
        spec: `demo`, a path to a voice's `.onnx`, to a training `.ckpt` or to a saved artifact's
            directory, optionally with the family in front (`piper:voice.onnx`); for the other
            systems the family and what it is opened from (`f5-tts:F5TTS_v1_Base`).
        device: The device of a system in torch: `cpu`, `cuda`, `cuda:N`, or `auto`.
        matmul_precision: The precision of its FP32 products, which is that of the process.
        provider: The provider of onnxruntime for a voice of graphs, with its options.

    Raises:
        ModelError: There is no such model, it is not what the spec states, it is a bare graph, or
            it cannot compute there.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: An optional package is needed to read it.
    """
    execution = Execution(device=device, matmul_precision=matmul_precision, provider=provider)
    model = open_model(spec, execution=execution)
    if not isinstance(model, TTSModel):
        raise ModelError(
            f"{str(spec)[:80]!r} is a bare ONNX graph, which speaks no texts; "
            "it can be compressed and inspected"
        )
    return model


def open_model(spec: str | Path, *, bare: bool = False, execution: Execution = PROCESSOR) -> Model:
    """Return any model that a spec names, also one that speaks no texts.

    Args:
        spec: As for `load`, or `onnx:` and the path of a graph of any kind, or an artifact of one.
        bare: An `.onnx` that no family recognizes is a bare graph too.
        execution: The place where it computes.

    Raises:
        ModelError: There is no such model, or it is not what the spec states.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: An optional package is needed to read it.
    """
    if not isinstance(spec, str | PathLike):
        kind = spec.__name__ if isinstance(spec, type) else type(spec).__name__
        raise ModelError(
            f"{kind!r} is no model; give a path or another spec as text, what `load` returned, or "
            "a torch module, itself and not its class or state_dict"
        )
    text = str(spec)
    try:
        family, location, manifest = _resolve(text, bare=bare)
        model: Any = _open(family, location, text, manifest)
    except (OSError, UnicodeError) as error:
        raise ModelError(
            f"cannot load {text[:80]!r}: {error}; accepted: {accepted_specs()}"
        ) from error
    if execution != PROCESSOR and not hasattr(model, "on"):
        raise ModelError(f"models of family {model.family!r} compute on the processor alone")
    moved: Model = model if execution == PROCESSOR else model.on(execution)
    return moved


def family_of(spec: str) -> str | None:
    """Return the name of the family that a spec's model is of, unopened; None where it is none."""
    try:
        return _resolve(spec, bare=False)[0].name
    except (TTSCompressError, OSError, ValueError):
        return None


def _resolve(spec: str, *, bare: bool) -> tuple[Family, str, Manifest | None]:
    """Return the family of a spec's model, its location, and the manifest of an artifact."""
    name, separator, location = spec.partition(":")
    family = families().get(name) if separator else None
    if family is None:
        location = spec
    try:
        location.encode()  # manifests and reports can hold UTF-8 only
    except UnicodeEncodeError as error:
        raise ModelError(
            f"{location!r:.80} is not UTF-8 in this locale; rename it, or set LC_ALL=C.UTF-8"
        ) from error
    path = Path(location)
    manifest = _manifest_of(path)
    if manifest is not None and path.is_dir():
        family = families().get(manifest.family)
        if family is None:
            raise ModelError(f"'{path}' is an artifact of family {manifest.family!r}; upgrade")
    elif family is None or family.suffixes:
        named = family is not None and path.suffix in family.suffixes and path.is_file()
        if family is None or not named or manifest is not None:
            family = _recognize(location, spec, manifest, bare=bare)
    return family, location, manifest


def _open(family: Family, location: str, spec: str, manifest: Manifest | None) -> Model:
    """Open a model with the code of its family, which is imported only now."""
    try:
        model: Model = resolve_name(family.opener)(location, spec, manifest)
    except ImportError as error:
        raise family.missing(error) from error
    return model


def _manifest_of(path: Path) -> Manifest | None:
    """Return the manifest of the artifact that a path is or belongs to."""
    if path.is_dir():
        return read_manifest(path) if (path / MANIFEST_NAME).is_file() else None
    if not path.is_file():
        return None
    for folder in path.absolute().parents[:2]:  # an artifact may have folders
        if (folder / MANIFEST_NAME).is_file():
            manifest = read_manifest(folder)
            name = path.absolute().relative_to(folder).as_posix()
            return manifest if name in manifest.files else None  # or another model's folder
    return None


def _recognize(location: str, spec: str, manifest: Manifest | None, *, bare: bool) -> Family:
    """Return the family of what a spec names without one, by its ending and what lies beside it."""
    registered, path = families(), Path(location)
    for family in registered.values():
        if location in family.shipped:
            return family
    if path.is_dir():
        raise ModelError(f"'{path}' holds no {MANIFEST_NAME}; give {accepted_specs(spec)}")
    fitting = [family for family in registered.values() if path.suffix in family.suffixes]
    if fitting and manifest is not None:
        return registered.get(manifest.family, fitting[0])
    for family in fitting:
        if _is_model_of(family, path):
            return family
    if fitting:  # the first one states what is missing
        return registered["onnx"] if bare and path.suffix == ".onnx" else fitting[0]
    if path.exists():
        raise ModelError(f"unknown kind of file: {spec!r}; give {accepted_specs()}")
    raise ModelError(f"no such model: {spec!r}; give {accepted_specs(spec)}")


def _is_model_of(family: Family, path: Path) -> bool:
    """Return True if a file with an ending of a family is one of its models."""
    if family.recognizer:
        return bool(resolve_name(family.recognizer)(path))
    if not path.with_name(f"{path.name}{family.beside}").exists():
        return False
    from tts_compress.models.contract.reading import is_stated

    return path.suffix != ".onnx" or not is_stated(path)  # a contract of the user's goes first
