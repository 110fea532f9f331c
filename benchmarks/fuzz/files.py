"""Files that commands read: documents, texts, arrays, tensors, checkpoints and recordings."""

import copy
import io
import json
import random
import shutil
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import soundfile
import torch

from benchmarks.fuzz.graphs import bare_graph, calls
from benchmarks.fuzz.mutate import Kind, mutate_bytes, mutate_file
from tts_compress import evaluation, load_module, report, save_module
from tts_compress.audio import read_wav
from tts_compress.compression import compress
from tts_compress.config import data_file, data_names, demo_voice
from tts_compress.evaluation.gates import gate, read_gates
from tts_compress.evaluation.suite import read_suite
from tts_compress.inspection.components import inspect_model, inspection_tables
from tts_compress.models import open_model
from tts_compress.models.base import TTSModel
from tts_compress.models.feeds import graph_inputs, open_feeds
from tts_compress.models.files import check_duration, read_tensors
from tts_compress.recipes.recipe import find_recipe, read_calibration_set
from tts_compress.terminal import show, show_json

REPORT = Path(__file__).parents[2] / "eval/reports/demo-int8.json"


def _inspect(model: Any) -> Any:
    facts = inspect_model(model)
    show(*inspection_tables(facts))
    return facts


def _write_voice(folder: Path, dice: random.Random) -> None:
    (folder / "voice.onnx").symlink_to(demo_voice())
    content = demo_voice().with_name("demo.onnx.json").read_bytes()
    (folder / "voice.onnx.json").write_bytes(mutate_file(content, dice))


def _read_voice(folder: Path, dice: random.Random) -> object:
    model = open_model(str(folder / "voice.onnx"))
    show_json(_inspect(model))
    if dice.random() < 0.1 and isinstance(model, TTSModel):
        return model.synthesize("Hello there.", seed=0)
    return model


@cache
def _shipped_report() -> Any:
    return json.loads(REPORT.read_bytes())


def _open_contract(path: Path) -> object:
    graph = path.with_name("graph.onnx")
    graph.write_bytes(bare_graph().SerializeToString())
    shutil.copyfile(path, path.with_name("contract.toml"))
    return open_model(f"contract:{graph}")


_TOML: dict[str, tuple[str, Any]] = {
    "calib/recipes": ("piper", lambda path: find_recipe("piper", "int8", path)),
    "calib/sets": ("en", lambda path: read_calibration_set(str(path))),
    "calib/contracts": ("vits", _open_contract),
    "eval/suites": ("en-quick", read_suite),
    "eval/gates": ("default", lambda path: gate(_shipped_report(), read_gates(path))),
}


def _write_toml(folder: Path, dice: random.Random) -> None:
    kind = dice.choice(sorted(_TOML))
    name = _TOML[kind][0] if dice.random() < 0.5 else dice.choice(data_names(kind))
    content = mutate_bytes(data_file(kind, name).read_bytes(), dice, text=True)
    if dice.random() < 0.3:
        lines = content.split(b"\n")
        dice.shuffle(lines)
        content = b"\n".join(lines)
    (folder / kind).mkdir(parents=True)
    (folder / kind / "file.toml").write_bytes(content)


def _read_toml(folder: Path, _: random.Random) -> object:
    [path] = folder.rglob("file.toml")
    return _TOML[str(path.parent.relative_to(folder))][1](path)


def _write_report(folder: Path, dice: random.Random) -> None:
    few = _shipped_report() | {"utterances": _shipped_report()["utterances"][:4]}
    (folder / "report.json").write_bytes(mutate_file(json.dumps(few).encode(), dice))


def _read_report(folder: Path, dice: random.Random) -> object:
    read = evaluation.read_report(folder)
    verdicts = [gate(read, read_gates(name)) for name in ("default", "strict", "cost")]
    show(report.summary_table(read))
    if dice.random() < 0.1:
        report.write_report(read, folder / "out")
    return verdicts


@cache
def made_artifact() -> Path:
    """Return an artifact of the bare graph, made once for each process."""
    folder = Path(mkdtemp(prefix="fuzz-artifact-"))
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    small = compress(f"onnx:{folder / 'graph.onnx'}", "int8-weight-only")
    return small.save(folder / "out")


def _write_manifest(folder: Path, dice: random.Random) -> None:
    shutil.copytree(made_artifact(), folder / "artifact")
    path = folder / "artifact" / "manifest.json"
    path.write_bytes(mutate_file(path.read_bytes(), dice))


_TEXTS = ("Hello there.", "Dr. Smith paid $3.50 at 10:30.", "a.b.c", "Ein schöner Tag", "你好")


def _write_text(folder: Path, dice: random.Random) -> None:
    text = dice.choice(_TEXTS) * dice.choice((1, 1, 2, 40))
    changed = mutate_bytes(text.encode(), dice, text=dice.random() < 0.7)[:4_000]
    (folder / "text").write_bytes(changed)


def _read_text(folder: Path, dice: random.Random) -> object:
    text = (folder / "text").read_bytes().decode("utf-8", "surrogateescape")
    if dice.random() < 0.5:
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return next(iter(_demo().calibration_calls([text], seed=0)))


@cache
def _demo() -> Any:
    return open_model("demo")


def _write_npz(folder: Path, dice: random.Random) -> None:
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    content = calls()
    if dice.random() < 0.6:  # a header that lies, in an archive that is whole
        header = [b"(1, 32, 8)", b"<f4", b"descr", b"False", b"\x93NUMPY\x01"]
        lies = [b"(1, 32, 1 << 60)", b"(1, 32, 99999999)", b"(-1, 32, 8)", b"()", b"(8,)", b"|O"]
        lies += [b"<f8", b"<i8", b"<U9", b"True", b"[" * 200, b"(1, 32, 16777216)"]
        npy, file = io.BytesIO(), io.BytesIO()
        np.save(npy, np.ones((1, 32, 8), np.float32) * dice.choice((0, 1, np.nan, np.inf)))
        lie = npy.getvalue().replace(dice.choice(header), dice.choice(lies))
        names = ["0/x.npy", "x", "0/y.npy", "999999999/x.npy", f"{'9' * 5_000}/x.npy"]
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(dice.choice(names[:1] * 4 + names), lie + b"\0" * 50_000)
        content = file.getvalue()
    else:
        content = mutate_bytes(content, dice)
    (folder / "calls.npz").write_bytes(content)


def _read_npz(folder: Path, dice: random.Random) -> object:
    if dice.random() < 0.1:
        return compress(f"onnx:{folder / 'graph.onnx'}", "int8", calibration=folder / "calls.npz")
    feeds = open_feeds(folder / "calls.npz", graph_inputs(bare_graph()))
    return sum(array.nbytes for call in feeds.read(4) for array in call.values())


@cache
def _module() -> tuple[Any, bytes]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Conv1d(64, 64, 3)).eval()
    with TemporaryDirectory() as folder:
        saved = save_module(compress(net, "int8-weight-only"), Path(folder) / "net.safetensors")
        return net, saved.read_bytes()


def _write_safetensors(folder: Path, dice: random.Random) -> None:
    content = _module()[1]
    end = 8 + int.from_bytes(content[:8], "little")
    if dice.random() < 0.6:
        text = mutate_file(content[8:end], dice)
        stated = dice.choice((len(text),) * 8 + (0, 1 << 62, len(text) - 1))
        content = stated.to_bytes(8, "little") + text + content[end:]
    else:
        content = mutate_bytes(content, dice)
    (folder / "net.safetensors").write_bytes(content)


def _read_safetensors(folder: Path, dice: random.Random) -> object:
    path = folder / "net.safetensors"
    if dice.random() < 0.4:
        return read_tensors(path)
    return load_module(copy.deepcopy(_module()[0]), path)


@cache
def _pickled(*, zipped: bool, settings: bool) -> bytes:
    file, weight = io.BytesIO(), torch.ones(4, 8)
    content: dict[str, Any] = {"a": weight, "b": weight[1:, ::2]}
    if settings:
        content = {"state_dict": content, "hyper_parameters": {"n": [1]}}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def _write_checkpoint(folder: Path, dice: random.Random) -> None:
    content = _pickled(zipped=dice.random() < 0.8, settings=dice.random() < 0.3)
    (folder / "voice.ckpt").write_bytes(mutate_file(content, dice))


def _read_checkpoint(folder: Path, dice: random.Random) -> object:
    path = folder / "voice.ckpt"
    return read_tensors(path) if dice.random() < 0.5 else open_model(str(path))


def _write_recording(folder: Path, dice: random.Random) -> None:
    file, kind = io.BytesIO(), dice.choice(("WAV", "FLAC", "OGG"))
    soundfile.write(file, np.zeros(8_000, np.float32), 8_000, format=kind)
    content = file.getvalue()
    head = mutate_bytes(content[:128], dice) if dice.random() < 0.7 else content[:128]
    (folder / "speech.wav").write_bytes(head + content[128:])


def _read_recording(folder: Path, _: random.Random) -> object:
    check_duration(folder / "speech.wav", (0.5, 30.0))
    return read_wav(folder / "speech.wav")


KINDS = {
    "json": Kind(14, _write_voice, _read_voice),
    "toml": Kind(14, _write_toml, _read_toml),
    "manifest": Kind(12, _write_manifest, lambda at, _: _inspect(open_model(at / "artifact"))),
    "report": Kind(10, _write_report, _read_report),
    "npz": Kind(10, _write_npz, _read_npz),
    "safetensors": Kind(8, _write_safetensors, _read_safetensors),
    "text": Kind(5, _write_text, _read_text),
    "checkpoint": Kind(3, _write_checkpoint, _read_checkpoint),
    "recording": Kind(2, _write_recording, _read_recording),
}
