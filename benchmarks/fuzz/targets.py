"""The kinds of input, the valid example of each, and what reads it as a user's command does."""

import copy
import io
import json
import random
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.fuzz.mutate import json_text, mutate_bytes, mutate_graph, mutate_json
from tts_compress.compression import compress
from tts_compress.config import data_file, data_names, demo_voice
from tts_compress.models import open_model
from tts_compress.recipes.family import find_recipe

_SCHEMES = ("int8-weight-only", "int8-dynamic", "fp16", "int8", "int4-weight-only")
_TEXTS = ("Hello there.", "Dr. Smith paid $3.50 at 10:30.", "a.b.c", "Ein schöner Tag", "你好")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input."""

    share: int
    """Cases of it among a hundred."""

    write: Callable[[Path, random.Random], None]
    """Writes a mutated case into a folder."""

    read: Callable[[Path, random.Random], object]
    """Reads it; an error of ours is a good end."""


@cache
def bare_graph() -> onnx.ModelProto:
    """Return a small graph with convolutions, a product, and a branch of shapes."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "a.weight", "a.bias"], ["a"], "a", pads=[1, 1]),
        helper.make_node("LeakyRelu", ["a"], ["b"], "b", alpha=0.1),
        helper.make_node("ConvTranspose", ["b", "c.weight"], ["c"], "c", strides=[2], pads=[1, 1]),
        helper.make_node("Transpose", ["c"], ["d"], "d", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["d", "e.weight"], ["e"], "e"),
        helper.make_node("Tanh", ["e"], ["y"], "y"),
    ]
    weights = [
        *(weight("a.weight", 64, 32, 3), weight("a.bias", 64)),
        *(weight("c.weight", 64, 64, 4), weight("e.weight", 64, 64)),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, "time"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "frames", 64])
    graph = helper.make_graph(nodes, "bare", [x], [y], weights)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


@cache
def _calls() -> bytes:
    """Return the `.npz` of two calls of the bare graph."""
    file, generator = io.BytesIO(), np.random.default_rng(0)
    calls = {f"{n}/x": generator.normal(size=(1, 32, 8)).astype(np.float32) for n in range(2)}
    np.savez(file, **calls)  # type: ignore[arg-type]
    return file.getvalue()


def _write_onnx(folder: Path, dice: random.Random) -> None:
    (folder / "calls.npz").write_bytes(_calls())
    (folder / "graph.onnx").write_bytes(mutate_graph(bare_graph(), dice))


def _write_npz(folder: Path, dice: random.Random) -> None:
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    content = _calls()
    if dice.random() < 0.6:  # a header that lies, in an archive that is whole
        header = [b"(1, 32, 8)", b"<f4", b"descr", b"False", b"\x93NUMPY\x01"]
        lies = [b"(1, 32, 1 << 60)", b"(1, 32, 99999999)", b"(-1, 32, 8)", b"()", b"(8,)", b"|O"]
        lies += [b"<f8", b"<i8", b"<U9", b"True", b"[" * 200, b"(1, 32, 16777216)"]
        array = np.ones((1, 32, 8), np.float32) * dice.choice((0, 1, np.nan, np.inf))
        npy = io.BytesIO()
        np.save(npy, array)
        lie = npy.getvalue().replace(dice.choice(header), dice.choice(lies))
        file = io.BytesIO()
        names = ["0/x.npy", "x", "0/y.npy", "999999999/x.npy", f"{'9' * 5_000}/x.npy"]
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(dice.choice(names[:1] * 4 + names), lie + b"\0" * 50_000)
        content = file.getvalue()
    else:
        content = mutate_bytes(content, dice)
    (folder / "calls.npz").write_bytes(content)


def _compress_graph(folder: Path, dice: random.Random) -> object:
    model: Any = open_model(f"onnx:{folder / 'graph.onnx'}")
    found = [model.describe(), list(model.components())]
    scheme = dice.choice(_SCHEMES)
    needs = find_recipe("onnx", scheme).calibration is not None
    given = str(folder / "calls.npz") if needs else None
    small = compress(model, scheme, calibration=given)
    return found, small.save(folder / "out")


def _read_calls(folder: Path, dice: random.Random) -> object:
    from tts_compress.models.feeds import graph_inputs, open_feeds

    if dice.random() < 0.1:
        return compress(f"onnx:{folder / 'graph.onnx'}", "int8", calibration=folder / "calls.npz")
    feeds = open_feeds(folder / "calls.npz", graph_inputs(bare_graph()))
    return sum(array.nbytes for call in feeds.read(4) for array in call.values())


@cache
def _voice_config() -> Any:
    return json.loads(demo_voice().with_name("demo.onnx.json").read_text("utf-8"))


def _write_voice(folder: Path, dice: random.Random) -> None:
    (folder / "voice.onnx").symlink_to(demo_voice())
    content = json_text(mutate_json(_voice_config(), dice), dice)
    (folder / "voice.onnx.json").write_bytes(content)


def _read_voice(folder: Path, dice: random.Random) -> object:
    from tts_compress.inspection import inspect_model, inspection_tables
    from tts_compress.models.base import TTSModel
    from tts_compress.terminal import show, show_json

    model = open_model(str(folder / "voice.onnx"))
    found = inspect_model(model)
    show(*inspection_tables(found))
    show_json(found)
    if dice.random() < 0.1 and isinstance(model, TTSModel):
        return model.synthesize("Hello there.", seed=0)
    return found


_TOML = {
    "calib/recipes": "piper",
    "calib/sets": "en",
    "calib/contracts": "vits",
    "eval/suites": "en-quick",
    "eval/gates": "default",
}


@cache
def _toml(kind: str, name: str) -> bytes:
    return data_file(kind, name).read_bytes()


def _write_toml(folder: Path, dice: random.Random) -> None:
    kind = dice.choice(sorted(_TOML))
    name = _TOML[kind] if dice.random() < 0.5 else dice.choice(data_names(kind))
    content = mutate_bytes(_toml(kind, name), dice, text=True)
    if dice.random() < 0.3:
        lines = content.split(b"\n")
        dice.shuffle(lines)
        content = b"\n".join(lines)
    (folder / "kind").write_text(kind, "utf-8")
    (folder / "file.toml").write_bytes(content)


def _read_toml(folder: Path, dice: random.Random) -> object:
    from tts_compress.evaluation.gates import check, read_gates
    from tts_compress.evaluation.suite import read_suite
    from tts_compress.recipes.recipe import read_calibration_set

    kind, path = (folder / "kind").read_text("utf-8"), folder / "file.toml"
    readers: dict[str, Callable[[Path], object]] = {
        "calib/recipes": lambda path: find_recipe("piper", "int8", path),
        "calib/sets": lambda path: read_calibration_set(str(path)),
        "calib/contracts": _open_contract,
        "eval/suites": read_suite,
        "eval/gates": lambda path: check(_report(), read_gates(path)),
    }
    del dice
    return readers[kind](path)


def _open_contract(path: Path) -> object:
    folder = path.parent
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    shutil.copyfile(path, folder / "contract.toml")
    return open_model(f"contract:{folder / 'graph.onnx'}")


@cache
def _report() -> Any:
    return json.loads((Path(__file__).parents[2] / "eval/reports/demo-int8.json").read_bytes())


def _write_report(folder: Path, dice: random.Random) -> None:
    report = dict(_report())
    report["utterances"] = report.get("utterances", [])[:4]
    (folder / "report.json").write_bytes(json_text(mutate_json(report, dice), dice))


def _read_report(folder: Path, dice: random.Random) -> object:
    from tts_compress.evaluation import check, read_gates, read_report
    from tts_compress.report import summary_table, write_report
    from tts_compress.terminal import show

    report = read_report(folder)
    verdicts = [check(report, read_gates(name)) for name in ("default", "strict", "cost")]
    show(summary_table(report))
    if dice.random() < 0.1:
        write_report(report, folder / "out")
    return verdicts


@cache
def _artifact() -> Path:
    """Return an artifact of the bare graph, made once for each process."""
    from tempfile import mkdtemp

    folder = Path(mkdtemp(prefix="fuzz-artifact-"))
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    small = compress(f"onnx:{folder / 'graph.onnx'}", "int8-weight-only")
    return small.save(folder / "out")


def _write_manifest(folder: Path, dice: random.Random) -> None:
    shutil.copytree(_artifact(), folder / "artifact")
    path = folder / "artifact" / "manifest.json"
    path.write_bytes(json_text(mutate_json(json.loads(path.read_bytes()), dice), dice))


def _read_manifest(folder: Path, dice: random.Random) -> object:
    from tts_compress.inspection import inspect_model, inspection_tables
    from tts_compress.terminal import show

    del dice
    found = inspect_model(open_model(folder / "artifact"))
    show(*inspection_tables(found))
    return found


@cache
def _module() -> tuple[Any, bytes]:
    """Return a module, and the file of its compressed form."""
    import torch

    from tts_compress import save_module

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Conv1d(64, 64, 3)).eval()
    path = _artifact().with_name("net.safetensors")
    with suppress(FileNotFoundError):
        path.unlink()
    return net, save_module(compress(net, "int8-weight-only"), path).read_bytes()


def _write_safetensors(folder: Path, dice: random.Random) -> None:
    content = _module()[1]
    length = int.from_bytes(content[:8], "little")
    if dice.random() < 0.6:
        header = mutate_json(json.loads(content[8 : 8 + length]), dice)
        text = json_text(header, dice)
        stated = dice.choice((len(text),) * 8 + (0, 1 << 62, len(text) - 1))
        content = stated.to_bytes(8, "little") + text + content[8 + length :]
    else:
        content = mutate_bytes(content, dice)
    (folder / "net.safetensors").write_bytes(content)


def _read_safetensors(folder: Path, dice: random.Random) -> object:
    from tts_compress import load_module
    from tts_compress.models.files import read_tensors

    path = folder / "net.safetensors"
    if dice.random() < 0.4:
        return read_tensors(path)
    return load_module(copy.deepcopy(_module()[0]), path)


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


KINDS: Mapping[str, Kind] = {
    "onnx": Kind(25, _write_onnx, _compress_graph),
    "json": Kind(15, _write_voice, _read_voice),
    "toml": Kind(15, _write_toml, _read_toml),
    "manifest": Kind(12, _write_manifest, _read_manifest),
    "report": Kind(10, _write_report, _read_report),
    "npz": Kind(10, _write_npz, _read_calls),
    "safetensors": Kind(8, _write_safetensors, _read_safetensors),
    "text": Kind(5, _write_text, _read_text),
}
"""Every kind of input, by name."""
