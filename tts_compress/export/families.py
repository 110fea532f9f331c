"""Export of a model's graphs and of their calibration calls; one module per system."""

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from tts_compress.artifact import atomic_directory
from tts_compress.errors import ArtifactError, MissingExtraError, ModelError
from tts_compress.models.base import TorchModel

FAMILIES = {
    "f5-tts": "tts_compress.export.f5",
    "parler-tts": "tts_compress.export.dac",
}
"""Modules with `write_graphs` and `recording`."""

SETTINGS_NAME = "export.json"
"""Settings beside the graphs, for programs that run them."""

_FORMAT_VERSION = 1


def export(model: TorchModel, directory: Path | str, *, force: bool = False) -> list[Path]:
    """Write a model's graphs, and `export.json` with the settings to run them.

    Args:
        model: An F5-TTS or Parler-TTS model that is not compressed; it is not changed.
        directory: The directory to create.
        force: Replace an earlier export.

    Returns:
        The graphs in the order in which they run, then `export.json`.

    Raises:
        ModelError: The model is compressed, of another family, or cannot be exported.
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
        MissingExtraError: A package is not installed.
    """
    target = Path(directory)
    family = _family_of(model)
    with atomic_directory(target, marker=SETTINGS_NAME, force=force) as partial:
        graphs, settings = family.write_graphs(model, partial)
        stated = {
            "format_version": _FORMAT_VERSION,
            "family": model.family,
            "sample_rate": model.sample_rate,
            "graphs": [path.name for path in graphs],
            **settings,
        }
        text = json.dumps(stated, indent=2, ensure_ascii=False)
        (partial / SETTINGS_NAME).write_text(f"{text}\n", encoding="utf-8")
    return [target / name for name in (*stated["graphs"], SETTINGS_NAME)]


def record_feeds(
    model: TorchModel, texts: Iterable[str], directory: Path | str, *, seed: int = 0
) -> list[Path]:
    """Let a model speak and record the inputs of its exported graphs, for calibration.

    Args:
        model: As for `export`; it is not changed.
        texts: Texts to speak.
        directory: An existing folder, for one `<graph>.npz` of each recorded graph.
        seed: Seed of the noise of the first text; each following text has the next.

    Returns:
        The files.

    Raises:
        ModelError: As for `export`, or the model cannot speak.
        TextError: A text cannot be spoken.
        ArtifactError: A file cannot be written.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ArtifactError(f"no folder '{folder}'; create it first")
    family = _family_of(model)
    with family.recording(model, folder) as files:
        for number, text in enumerate(texts):
            model.synthesize(text, seed=seed + number)
    return list(files)


def _family_of(model: TorchModel) -> Any:
    """Return the module that exports a model's family.

    Raises:
        ModelError: There is none, or the model is compressed.
        MissingExtraError: torch is not installed.
    """
    if model.family not in FAMILIES:
        raise ModelError(
            f"family {model.family!r} cannot be exported; those that can are {', '.join(FAMILIES)}"
        )
    if model.manifest is not None:
        raise ModelError(
            f"'{model.spec}' is compressed ({model.manifest.scheme}); export the original, and "
            "compress its graphs: 'onnx:' and the path of each"
        )
    try:
        return import_module(FAMILIES[model.family])
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "torch") from error
