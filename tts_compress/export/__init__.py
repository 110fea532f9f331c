"""ONNX graphs of systems that run in torch, and graphs in the place of torch modules.

>>> from tts_compress.export import OnnxVocos, export
>>> export(load("f5-tts:F5TTS_v1_Base"), "out/f5-onnx")
>>> compress("onnx:out/f5-onnx/vocoder.onnx", "int8-dynamic").save("out/vocoder-int8")
>>> f5.vocoder = OnnxVocos("out/vocoder-int8/vocoder.onnx")  # of an official F5TTS object
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tts_compress.artifact import atomic_directory
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.export import dac, f5, gpt_sovits
from tts_compress.export.dac import export_dac
from tts_compress.export.f5 import export_f5, export_vocos
from tts_compress.export.f5_step import F5GraphOptions
from tts_compress.export.fourier import FrameSettings
from tts_compress.export.graphs import OnnxDac, OnnxModule, OnnxVocos
from tts_compress.models.base import TorchModel
from tts_compress.models.feeds import feeds_writer

__all__ = [
    "F5GraphOptions",
    "FrameSettings",
    "OnnxDac",
    "OnnxModule",
    "OnnxVocos",
    "export",
    "export_dac",
    "export_f5",
    "export_vocos",
    "feeds_writer",
    "record_feeds",
]

_FAMILIES = {"f5-tts": f5, "gpt-sovits": gpt_sovits, "parler-tts": dac}
"""Modules with `write_graphs` and `recording`."""

_SETTINGS_NAME = "export.json"
"""Settings beside the graphs, for programs that run them."""

_FORMAT_VERSION = 1


def export(
    model: TorchModel, directory: Path | str, *, texts: Sequence[str] = (), force: bool = False
) -> list[Path]:
    """Write a model's graphs, and `export.json` with the settings to run them.

    Args:
        model: An F5-TTS, GPT-SoVITS or Parler-TTS model that is not compressed; it is not changed.
        directory: The directory to create.
        texts: Texts of which the graphs' inputs are recorded beside them, as by `record_feeds`.
        force: Replace an earlier export.

    Returns:
        The graphs in the order in which they run, then `export.json`.

    Raises:
        ModelError: The model is compressed, of another family, or cannot be exported or speak.
        TextError: A text cannot be spoken.
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
    """
    target = Path(directory)
    family = _family_of(model)
    with atomic_directory(target, marker=_SETTINGS_NAME, force=force) as partial:
        if texts:
            record_feeds(model, texts, partial)
        graphs, settings = family.write_graphs(model, partial)
        stated = {
            "format_version": _FORMAT_VERSION,
            "family": model.family,
            "sample_rate": model.sample_rate,
            "graphs": [path.name for path in graphs],
            **settings,
        }
        text = json.dumps(stated, indent=2, ensure_ascii=False)
        (partial / _SETTINGS_NAME).write_text(f"{text}\n", encoding="utf-8")
    return [target / name for name in (*stated["graphs"], _SETTINGS_NAME)]


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
    """Return the module that exports a model's family."""
    if model.family not in _FAMILIES:
        raise ModelError(
            f"family {model.family!r} cannot be exported; those that can are {', '.join(_FAMILIES)}"
        )
    if model.manifest is not None:
        raise ModelError(
            f"'{model.spec}' is compressed ({model.manifest.scheme}); export the original, and "
            "compress its graphs: 'onnx:' and the path of each"
        )
    return _FAMILIES[model.family]
