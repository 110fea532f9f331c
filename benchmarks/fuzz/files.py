"""Files that commands read: documents, texts, arrays, tensors, checkpoints and recordings."""

import copy
import io
import json
import random
import shutil
import zipfile
from collections.abc import Iterator
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


def _voice(folder: Path, dice: random.Random) -> Iterator[None]:
    (folder / "voice.onnx").symlink_to(demo_voice())
    content = demo_voice().with_name("demo.onnx.json").read_bytes()
    (folder / "voice.onnx.json").write_bytes(mutate_file(content, dice))
    yield
    model = open_model(str(folder / "voice.onnx"))
    show_json(_inspect(model))
    if dice.random() < 0.1 and isinstance(model, TTSModel):
        model.synthesize("Hello there.", seed=0)


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


def _toml(folder: Path, dice: random.Random) -> Iterator[None]:
    kind = dice.choice(sorted(_TOML))
    name = _TOML[kind][0] if dice.random() < 0.5 else dice.choice(data_names(kind))
    content = mutate_bytes(data_file(kind, name).read_bytes(), dice, text=True)
    if dice.random() < 0.3:
        lines = content.split(b"\n")
        dice.shuffle(lines)
        content = b"\n".join(lines)
    (folder / "file.toml").write_bytes(content)
    yield
    _TOML[kind][1](folder / "file.toml")


def _report(folder: Path, dice: random.Random) -> Iterator[None]:
    few = _shipped_report() | {"utterances": _shipped_report()["utterances"][:4]}
    (folder / "report.json").write_bytes(mutate_file(json.dumps(few).encode(), dice))
    yield
    read = evaluation.read_report(folder)
    for name in ("default", "strict", "cost"):
        gate(read, read_gates(name))
    show(report.summary_table(read))
    if dice.random() < 0.1:
        report.write_report(read, folder / "out")


@cache
def made_artifact() -> Path:
    """Return an artifact of the bare graph, made once for each process."""
    folder = Path(mkdtemp(prefix="fuzz-artifact-"))
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    small = compress(f"onnx:{folder / 'graph.onnx'}", "int8-weight-only")
    return small.save(folder / "out")


def _manifest(folder: Path, dice: random.Random) -> Iterator[None]:
    shutil.copytree(made_artifact(), folder / "artifact")
    path = folder / "artifact" / "manifest.json"
    path.write_bytes(mutate_file(path.read_bytes(), dice))
    yield
    _inspect(open_model(folder / "artifact"))


_TEXTS = ("Hello there.", "Dr. Smith paid $3.50 at 10:30.", "a.b.c", "Ein schöner Tag", "你好")


def _text(folder: Path, dice: random.Random) -> Iterator[None]:
    text = dice.choice(_TEXTS) * dice.choice((1, 1, 2, 40))
    changed = mutate_bytes(text.encode(), dice, text=dice.random() < 0.7)[:4_000]
    (folder / "text").write_bytes(changed)
    yield
    text = changed.decode("utf-8", "replace" if dice.random() < 0.5 else "surrogateescape")
    next(iter(_demo().calibration_calls([text], seed=0)))


@cache
def _demo() -> Any:
    return open_model("demo")


def _npz(folder: Path, dice: random.Random) -> Iterator[None]:
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
    yield
    if dice.random() < 0.1:
        compress(f"onnx:{folder / 'graph.onnx'}", "int8", calibration=folder / "calls.npz")
    else:
        list(open_feeds(folder / "calls.npz", graph_inputs(bare_graph())).read(4))


@cache
def _module() -> tuple[Any, bytes]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Conv1d(64, 64, 3)).eval()
    with TemporaryDirectory() as folder:
        saved = save_module(compress(net, "int8-weight-only"), Path(folder) / "net.safetensors")
        return net, saved.read_bytes()


def _safetensors(folder: Path, dice: random.Random) -> Iterator[None]:
    path = folder / "net.safetensors"
    content = _module()[1]
    end = 8 + int.from_bytes(content[:8], "little")
    if dice.random() < 0.6:
        text = mutate_file(content[8:end], dice)
        stated = dice.choice((len(text),) * 8 + (0, 1 << 62, len(text) - 1))
        content = stated.to_bytes(8, "little") + text + content[end:]
    else:
        content = mutate_bytes(content, dice)
    path.write_bytes(content)
    yield
    if dice.random() < 0.4:
        read_tensors(path)
    else:
        load_module(copy.deepcopy(_module()[0]), path)


@cache
def _pickled(*, zipped: bool, settings: bool) -> bytes:
    file, weight = io.BytesIO(), torch.ones(4, 8)
    content: dict[str, Any] = {"a": weight, "b": weight[1:, ::2]}
    if settings:
        content = {"state_dict": content, "hyper_parameters": {"n": [1]}}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def _checkpoint(folder: Path, dice: random.Random) -> Iterator[None]:
    path = folder / "voice.ckpt"
    content = _pickled(zipped=dice.random() < 0.8, settings=dice.random() < 0.3)
    path.write_bytes(mutate_file(content, dice))
    yield
    (read_tensors if dice.random() < 0.5 else open_model)(path)


def _recording(folder: Path, dice: random.Random) -> Iterator[None]:
    file, kind = io.BytesIO(), dice.choice(("WAV", "FLAC", "OGG"))
    soundfile.write(file, np.zeros(8_000, np.float32), 8_000, format=kind)
    content = file.getvalue()
    head = mutate_bytes(content[:128], dice) if dice.random() < 0.7 else content[:128]
    (folder / "speech.wav").write_bytes(head + content[128:])
    yield
    check_duration(folder / "speech.wav", (0.5, 30.0))
    read_wav(folder / "speech.wav")


KINDS = {
    "json": Kind(14, _voice),
    "toml": Kind(14, _toml),
    "manifest": Kind(12, _manifest),
    "report": Kind(10, _report),
    "npz": Kind(10, _npz),
    "safetensors": Kind(8, _safetensors),
    "text": Kind(5, _text),
    "checkpoint": Kind(3, _checkpoint),
    "recording": Kind(2, _recording),
}
