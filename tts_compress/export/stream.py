"""A voice's files with its sound's graph in stages beside them, for players that stream.

`stream/` holds the encoder, the stages, all their weights in one file that a runtime maps into
memory, and `stream.json`, which states what to give them, a canary, and each file's SHA-256. The
unsplit voice is there, too, for programs that know no stages.

The canary has levels of a short sound, by which a player sees that its runtime garbles: WebGPU and
other accelerators have made noise or silence of voices without any error (onnxruntime issue 29807,
transformers.js issue 1320). A player that speaks it when it opens a voice, and compares the levels
with those that are stored, sees that before a listener hears it.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.external_data_helper import convert_model_to_external_data

from tts_compress.artifact import atomic_directory, sha256_of
from tts_compress.errors import ModelError
from tts_compress.models.contract.inputs import StyleInput, sizes_read
from tts_compress.models.contract.styles import counted_by
from tts_compress.models.files import STREAM_NAME
from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.models.streaming import chunk_bounds
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.session import Feeds, input_names, open_session, run_session
from tts_compress.onnx.stages import StagedGraph

_WEIGHTS = "weights.bin"
_SMALLEST = 4096
"""Bytes of a weight that is kept outside its graph: a page."""


def export_stream(
    voice: OnnxVoice, directory: Path | str, *, whole: bool = False, force: bool = False
) -> list[Path]:
    """Write a voice's files and `stream/`.

    Args:
        voice: A voice of graphs, compressed or not.
        directory: The directory to create.
        whole: For players that take a single graph: one that is not local in time is that graph
            and no stages, which speaks whole texts.
        force: Replace an earlier export.

    Returns:
        `stream.json`, then the stages' files in the order in which they run.

    Raises:
        ModelError: Most of the voice is not local in time, and the operator is named; or it has
            several graphs and `whole` is asked for.
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
    """
    target = Path(directory)
    with beside(voice, target / STREAM_NAME, force=force) as folder:
        cut = _cut(voice, whole=whole)
        named = [(f"stage{number}.onnx", model) for number, model in enumerate(cut.models, 1)]
        if cut.encoder is not None:
            named.insert(0, ("encoder.onnx", cut.encoder))
        for name, model in named:
            # Weights are appended to those of the others.
            convert_model_to_external_data(model, location=_WEIGHTS, size_threshold=_SMALLEST)
            onnx.save(model, folder / name)
        (folder / _WEIGHTS).chmod(0o644)  # onnx makes files that only their owner can read
        content = _settings(voice, cut.stages, [name for name, _ in named])
        if whole:
            content["styles"] = _write_styles(voice, folder)
        content["sha256"] = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
        write_settings(content, folder / Path(STREAM_NAME).name)
    return [target / STREAM_NAME, *((target / STREAM_NAME).parent / name for name, _ in named)]


@contextmanager
def beside(voice: OnnxVoice, settings: Path, *, force: bool) -> Iterator[Path]:
    """Write a voice's files; yield a folder beside them, for graphs and the file of settings."""
    directory = settings.parents[1]
    marker = str(settings.relative_to(directory))
    with atomic_directory(directory, marker=marker, force=force) as partial:
        saved = voice.save(partial / "voice")
        for path in saved.iterdir():
            shutil.move(path, partial / path.name)
        saved.rmdir()
        folder = partial / settings.parent.name
        folder.mkdir()
        yield folder


def write_settings(content: Mapping[str, Any], path: Path) -> None:
    """Write what a player has to know."""
    path.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")


def _cut(voice: OnnxVoice, *, whole: bool) -> StagedGraph:
    if whole and not is_plain(voice):
        raise ModelError(
            f"'{voice.spec}' has {NOT_PLAIN}, which the browser's player does not play; "
            "--stream writes its stages for `tts-compress stream`"
        )
    try:
        return voice.cut()
    except ModelError:
        if not whole:
            raise
    return StagedGraph(encoder=copy_model(voice.graph()), stages=(), models=(), share=0.0)


NOT_PLAIN = "several graphs, spectra for sound, or other inputs as long as the text"
"""Any of these makes a voice no plain one; part of a message."""


def is_plain(voice: OnnxVoice) -> bool:
    """Return True for a voice of one graph that makes samples of ids, their number, and numbers."""
    roles = [r for r in voice.parts[""].roles.values() if r.role not in {"tokens", "lengths"}]
    is_sized = any(size for role in roles for size in sizes_read(role))
    return len(voice.parts) == 1 and voice.parts[""].table.spectrum is None and not is_sized


def _write_styles(voice: OnnxVoice, folder: Path) -> dict[str, Any]:
    """Write float32 files of a voice's styles; return them and the row that a text is given.

    That is the number of what is counted, less `minus`, divided by `per`.
    """
    styles: dict[str, Any] = {}
    per, added = voice.caller.token_counts()
    for name, role in voice.parts[""].roles.items():
        if not isinstance(role, StyleInput):
            continue
        files: dict[str, str] = {}
        for speaker, array in voice.caller.styles[role].items():
            files[speaker] = f"style{len(styles)}-{len(files)}.bin"
            array.astype("<f4").tofile(folder / files[speaker])
        counted, less = counted_by(role.rule)
        row = {
            None: None,
            "tokens": {"of": "ids", "minus": added + less * per, "per": per},
            "text": {"of": "characters", "minus": less, "per": 1},
        }[counted]
        styles[name] = {"usual": voice.speaker or next(iter(files)), "files": files, "row": row}
    return styles


def _settings(voice: OnnxVoice, stages: Any, graphs: list[str]) -> dict[str, Any]:
    """Return what a player has to know."""
    spectrum = [*voice.parts.values()][-1].table.spectrum
    first, most = chunk_bounds(voice.sample_rate, stages) if stages else (0, 0)
    return {
        "format_version": 1,
        "sample_rate": voice.sample_rate,
        "first_frames": first,
        "most_frames": most,
        "inputs": stated_inputs(voice),
        "output": [*voice.parts.values()][-1].output,
        "encoder": graphs[0] if len(graphs) > len(stages) else None,
        "stages": [
            {"graph": name, **asdict(stage)}
            for name, stage in zip(graphs[len(graphs) - len(stages) :], stages, strict=True)
        ],
        "spectrum": None if spectrum is None else spectrum.model_dump(mode="json"),
        "canary": make_canary(voice) if is_plain(voice) else None,
    }


def stated_inputs(voice: OnnxVoice) -> dict[str, Any] | None:
    """Return what a voice of one graph is given: `ids`, their `length`, or numbers; with types."""
    if len(voice.parts) > 1:
        return None
    part = voice.parts[""]
    kinds = {"tokens": "ids", "lengths": "length"}
    call = voice.two_calls("")[0]
    return {
        name: (kinds.get(part.roles[name].role, call[name].tolist()), str(call[name].dtype))
        for name in part.roles
        if name in call
    }


_SECONDS = 0.2
"""Length of the sound that is compared."""

_SIZE, _HOP = 512, 256
"""Samples of a frame, and from one to the next."""

_BANDS = 16
_RANGE_DB = 40.0
"""Levels that are further below the loudest count as that far below it."""

_USUAL_DB, _MOST_DB = 1.0, 3.0
"""Root mean square difference of levels that a right runtime stays below, and the largest that may
be allowed for a voice whose noise cannot be turned off."""

_REPEATS = 4


def make_canary(voice: OnnxVoice) -> dict[str, Any] | None:
    """Return what a player speaks and has to hear; None of a voice whose sound is never the same.

    Numbers among the inputs that scale noise are set to 0.
    """
    model, (call, _) = voice.graph(), voice.two_calls("")
    session = open_session(model, voice.spec)
    part, names = voice.parts[""], input_names(session)
    position = [output.name for output in session.get_outputs()].index(part.output)

    def say(feeds: Feeds) -> npt.NDArray[np.float64]:
        sound: npt.NDArray[np.float64] = np.asarray(
            run_session(session, feeds, voice.spec)[position], np.float64
        ).reshape(-1)
        return sound

    feeds = {name: value for name, value in call.items() if name in names}
    changed = _without_noise(feeds, [n for n in feeds if part.roles[n].role == "scales"], say)
    sounds = [say(feeds | changed) for _ in range(_REPEATS)]
    heard = _heard(sounds, voice.sample_rate)
    if heard is None:
        return None
    tokens = next(n for n, role in part.roles.items() if role.role == "tokens")
    ids = feeds[tokens].reshape(-1).tolist()
    return {"ids": ids, "inputs": {n: v.tolist() for n, v in changed.items()}} | heard


def _heard(sounds: list[npt.NDArray[np.float64]], rate: int) -> dict[str, Any] | None:
    """Return the levels of the loudest part of sounds, None where they are not the same."""
    count = round(_SECONDS * rate / _HOP) - 1
    length = len(sounds[0])
    if any(len(sound) != length for sound in sounds) or length < count * _HOP:
        return None
    sums = np.concatenate(([0.0], np.cumsum(np.square(sounds[0]))))
    energy = sums[count * _HOP :] - sums[: -count * _HOP]
    at = max(0, min(int(energy.argmax()), length - (count + 1) * _HOP))
    edges = np.unique(np.rint(np.geomspace(2, _SIZE // 2, _BANDS + 1)).astype(int))
    levels, *others = (_levels(sound[at:], count, edges) for sound in sounds)
    floor = float(levels.max()) - _RANGE_DB
    tolerance = max(_USUAL_DB, *(2.0 * _distance(levels, other, floor) for other in others))
    if not tolerance <= _MOST_DB:  # nor of numbers that are none
        return None
    return {
        "samples": length,
        "at": at,
        "size": _SIZE,
        "hop": _HOP,
        "edges": edges.tolist(),
        "levels_db": np.maximum(levels, floor).round(1).tolist(),
        "floor_db": round(floor, 1),
        "tolerance_db": round(tolerance, 1),
    }


def _without_noise(feeds: Feeds, names: list[str], say: Any) -> dict[str, npt.NDArray[Any]]:
    """Return inputs with 0 for each number without which the sound keeps length and loudness."""
    usual = say(feeds)
    changed = {name: feeds[name].copy() for name in names}
    for values in changed.values():
        for index, kept in enumerate(values.flat):
            values.flat[index] = 0
            if not _is_alike(usual, say(feeds | changed)):
                values.flat[index] = kept
    return changed


def _is_alike(usual: npt.NDArray[np.float64], sound: npt.NDArray[np.float64]) -> bool:
    """Return True for a sound of about the same length that is less than 20 dB softer."""
    if not 0.5 < len(sound) / max(1, len(usual)) < 2.0:
        return False
    return bool(np.square(sound).mean() > 0.01 * np.square(usual).mean())


def _levels(sound: npt.NDArray[np.float64], count: int, edges: Any) -> npt.NDArray[np.float64]:
    """Return the power of frames in bands, in dB of full scale, of shape `[frames, bands]`."""
    padded = np.pad(sound, (0, max(0, (count + 1) * _HOP - len(sound))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[: count * _HOP : _HOP]
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(_SIZE) / _SIZE)
    power = np.square(np.abs(np.fft.rfft(frames * window))) / _SIZE**2
    return 10.0 * np.log10(np.add.reduceat(power[:, : edges[-1]], edges[:-1], axis=1) + 1e-12)


def _distance(left: Any, right: Any, floor: float) -> float:
    difference = np.maximum(left, floor) - np.maximum(right, floor)
    return float(np.sqrt(np.square(difference).mean()))
