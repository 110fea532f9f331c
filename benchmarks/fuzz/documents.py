"""Texts: configurations, recipes and other TOML, reports, manifests, and what a voice is to say."""

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmarks.fuzz.graphs import bare_graph
from benchmarks.fuzz.mutate import json_text, mutate_bytes, mutate_json
from tts_compress import evaluation, report
from tts_compress.compression import compress
from tts_compress.config import data_file, data_names, demo_voice
from tts_compress.evaluation.gates import gate, read_gates
from tts_compress.evaluation.suite import read_suite
from tts_compress.inspection.components import inspect_model, inspection_tables
from tts_compress.models import open_model
from tts_compress.models.base import TTSModel
from tts_compress.recipes.recipe import find_recipe, read_calibration_set
from tts_compress.terminal import show, show_json

_TEXTS = ("Hello there.", "Dr. Smith paid $3.50 at 10:30.", "a.b.c", "Ein schöner Tag", "你好")


@cache
def _voice_config() -> Any:
    return json.loads(demo_voice().with_name("demo.onnx.json").read_text("utf-8"))


def write_voice(folder: Path, dice: random.Random) -> None:
    """Write the demo voice with a changed configuration."""
    (folder / "voice.onnx").symlink_to(demo_voice())
    content = json_text(mutate_json(_voice_config(), dice), dice)
    (folder / "voice.onnx.json").write_bytes(content)


def read_voice(folder: Path, dice: random.Random) -> object:
    """Inspect the voice; sometimes let it speak."""
    model = open_model(str(folder / "voice.onnx"))
    show_json(_inspect(model))
    if dice.random() < 0.1 and isinstance(model, TTSModel):
        return model.synthesize("Hello there.", seed=0)
    return model


def _inspect(model: Any) -> Any:

    facts = inspect_model(model)
    show(*inspection_tables(facts))
    return facts


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


def write_toml(folder: Path, dice: random.Random) -> None:
    """Write a changed recipe, calibration set, contract, suite or gates."""
    kind = dice.choice(sorted(_TOML))
    name = _TOML[kind] if dice.random() < 0.5 else dice.choice(data_names(kind))
    content = mutate_bytes(_toml(kind, name), dice, text=True)
    if dice.random() < 0.3:
        lines = content.split(b"\n")
        dice.shuffle(lines)
        content = b"\n".join(lines)
    (folder / "kind").write_text(kind, "utf-8")
    (folder / "file.toml").write_bytes(content)


def read_toml(folder: Path, _: random.Random) -> object:
    """Read it as what it was."""
    kind, path = (folder / "kind").read_text("utf-8"), folder / "file.toml"
    readers: dict[str, Callable[[Path], object]] = {
        "calib/recipes": lambda path: find_recipe("piper", "int8", path),
        "calib/sets": lambda path: read_calibration_set(str(path)),
        "calib/contracts": _open_contract,
        "eval/suites": read_suite,
        "eval/gates": lambda path: gate(shipped_report(), read_gates(path)),
    }
    return readers[kind](path)


def _open_contract(path: Path) -> object:
    folder = path.parent
    (folder / "graph.onnx").write_bytes(bare_graph().SerializeToString())
    shutil.copyfile(path, folder / "contract.toml")
    return open_model(f"contract:{folder / 'graph.onnx'}")


@cache
def shipped_report() -> Any:
    """Return the report of the demo voice."""
    return json.loads((Path(__file__).parents[2] / "eval/reports/demo-int8.json").read_bytes())


def write_report(folder: Path, dice: random.Random) -> None:
    """Write a changed report."""
    changed = dict(shipped_report())
    changed["utterances"] = changed.get("utterances", [])[:4]
    (folder / "report.json").write_bytes(json_text(mutate_json(changed, dice), dice))


def read_report(folder: Path, dice: random.Random) -> object:
    """Judge the report, and sometimes render it."""
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


def write_manifest(folder: Path, dice: random.Random) -> None:
    """Write an artifact with a changed manifest."""
    shutil.copytree(made_artifact(), folder / "artifact")
    path = folder / "artifact" / "manifest.json"
    path.write_bytes(json_text(mutate_json(json.loads(path.read_bytes()), dice), dice))


def read_manifest(folder: Path, _: random.Random) -> object:
    """Inspect the artifact."""
    return _inspect(open_model(folder / "artifact"))


def write_text(folder: Path, dice: random.Random) -> None:
    """Write a changed text."""
    text = dice.choice(_TEXTS) * dice.choice((1, 1, 2, 40))
    changed = mutate_bytes(text.encode(), dice, text=dice.random() < 0.7)[:4_000]
    (folder / "text").write_bytes(changed)


def read_text(folder: Path, dice: random.Random) -> object:
    """Turn the text into a call of the demo voice."""
    text = (folder / "text").read_bytes().decode("utf-8", "surrogateescape")
    if dice.random() < 0.5:
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return next(iter(_demo().calibration_calls([text], seed=0)))


@cache
def _demo() -> Any:
    return open_model("demo")
