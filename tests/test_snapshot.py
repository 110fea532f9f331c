"""Outputs for ONNX models and a bare module, compared before and after a refactoring."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.voices import open_voice
from tts_compress import TTSCompressError, compress, evaluate, save_module
from tts_compress.cli import main

pytestmark = pytest.mark.snapshot

_SCHEMES = ("fp16", "bf16", "int8", "int8-static", "int8-dynamic", "int8-weight-only")
_SUITE = """version = 1
name = "three"
language = "en-us"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = [0]
utterances = [
  { text = "Mud splashed over the hood of the jeep." },
  { text = "She bought 12 pears.", spoken = "she bought twelve pears" },
  { text = "Could you please open the kitchen window?" },
]

[card]
summary = "Three sentences."
source = "Written for this test."
licence = "CC0-1.0"
composition = "none"
"""


def test_signatures(snapshot: Any) -> None:
    snapshot.add_signatures()


def test_demo(
    snapshot: Any, tmp_path: Path, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {}
    for scheme in _SCHEMES:
        folder = snapshot.add_scheme(str(demo), "demo", scheme, family="piper")
        assert main(["inspect", str(folder), "--no-time", "--json"]) == 0
        snapshot.add(f"demo {scheme} inspect", json.loads(capsys.readouterr().out))
        folders[scheme] = folder
    suite, report = tmp_path / "three.toml", tmp_path / "report"
    suite.write_text(_SUITE, encoding="utf-8")
    evaluate(str(demo), str(folders["int8"]), suite=str(suite)).write(report)
    snapshot.add("demo report", json.loads((report / "report.json").read_text("utf-8")))
    assert main(["gate", str(report), "--gates", "default", "--json"]) in (0, 1)
    snapshot.add("demo gate", json.loads(capsys.readouterr().out))


def test_commands(
    snapshot: Any, tmp_path: Path, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = ["qat", str(demo), "--steps", "4", "--threads", "1"]
    for name, command in {
        "schemes": ["schemes"],
        "inspect": ["inspect", str(demo), "--no-time"],
        "quantize": ["quantize", str(demo), "--scheme", "fp16", "--output", str(tmp_path / "a")],
        "qat": [*trained, "--output", str(tmp_path / "qat")],
        "synthesize": ["synthesize", str(demo), "Yes.", "--output", str(tmp_path / "yes.wav")],
    }.items():
        assert main([*command, "--json"]) == 0
        snapshot.add(f"command {name}", json.loads(capsys.readouterr().out))
    snapshot.add_artifact("demo int8-qat", tmp_path / "qat")


def test_medium(snapshot: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    voice = open_voice("medium", tmp_path_factory.mktemp("voices"))
    for scheme in _SCHEMES:
        snapshot.add_scheme(str(voice.spec), "medium", scheme, family="piper")


def test_vocoder(snapshot: Any, tmp_path: Path, assets: Path) -> None:
    path = assets / "hifigan-v2-ljspeech" / "generator_v2.fp32.onnx"
    source = np.random.default_rng(0)
    mels: dict[str, Any] = {f"{call}/mel": source.normal(-5, 2, (1, 80, 40)) for call in range(4)}
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, **{name: mel.astype(np.float32) for name, mel in mels.items()})
    for scheme in _SCHEMES:
        snapshot.add_scheme(
            f"onnx:{path}", "vocoder", scheme, family="onnx", calibration=str(feeds)
        )


@pytest.mark.filterwarnings("ignore")  # the processor may lack a type's arithmetic
def test_module(snapshot: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nn = torch.nn
    network = nn.Sequential(
        nn.Conv1d(32, 64, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose1d(64, 64, 4, 2, 1),
        nn.Linear(80, 128),
        nn.TransformerEncoderLayer(128, 4, 256, batch_first=True),
    ).eval()
    batches = [torch.randn(1, 32, 40) for _ in range(4)]
    for scheme in (*_SCHEMES, "int4-weight-only", "int8-qat"):
        needed = scheme in {"int8", "int8-static", "int8-qat"}
        try:
            small = compress(network, scheme, calibration=batches if needed else None)
        except TTSCompressError as error:
            snapshot.add(f"module {scheme} refused", str(error))
            continue
        path = tmp_path / f"{scheme}.safetensors"
        save_module(small, path)
        snapshot.add(f"module {scheme}", hashlib.sha256(path.read_bytes()).hexdigest())
