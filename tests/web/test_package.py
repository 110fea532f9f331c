"""The npm package: it installs from its tarball, and speaks in Node what is spoken here."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.web.players import what_is_missing
from tests.models.contract.conftest import make_kitten, make_kokoro  # noqa: F401 -- fixtures
from tts_compress.export.stream import export_stream
from tts_compress.models import load
from tts_compress.models.base import Speaking

pytestmark = pytest.mark.slow

_PACKAGE = Path(__file__).parents[2] / "examples" / "web"
_SCRIPT = """
import * as ort from "onnxruntime-web";
import { readFile } from "node:fs/promises";
import { openVoice } from "tts-compress-web";

const [folder, ids, inputs] = process.argv.slice(2);
const voice = await openVoice(ort, (name) => readFile(`${folder}/${name}`));
const parts = [];
for await (const part of voice.speak(JSON.parse(ids), JSON.parse(inputs))) parts.push([...part]);
console.log(JSON.stringify({ provider: voice.provider, sampleRate: voice.sampleRate, parts }));
"""


def _run(folder: Path, *command: str) -> bytes:
    run = subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    return run.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the package is installed beside onnxruntime-web."""
    if reason := what_is_missing("node"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("node")
    _run(_PACKAGE, "npm", "pack", "--pack-destination", str(folder))
    (tarball,) = folder.glob("*.tgz")
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    quiet = ("--offline", "--no-audit", "--no-fund", "--legacy-peer-deps")
    _run(folder, "npm", "install", *quiet, str(tarball))
    (folder / "node_modules" / "onnxruntime-web").symlink_to(
        _PACKAGE / "node_modules" / "onnxruntime-web"
    )
    (folder / "speak.mjs").write_text(_SCRIPT, encoding="utf-8")
    return folder


def _spoken(installed: Path, stream: Path, ids: Any, inputs: dict[str, Any]) -> Any:
    given = (str(stream), json.dumps(ids), json.dumps(inputs))
    return json.loads(_run(installed, "node", "speak.mjs", *given))


def test_a_voice_in_stages_speaks(installed: Path, demo: Path, tmp_path: Path) -> None:
    voice: Any = load(demo)
    export_stream(voice, tmp_path / "out")
    call = next(voice.calibration_calls(["Hello there, and thank you."], seed=0))
    inputs = {"scales": [0.0, float(call["scales"][1]), 0.0]}
    heard = _spoken(installed, tmp_path / "out" / "stream", call["input"][0].tolist(), inputs)
    assert heard["sampleRate"] == voice.sample_rate
    assert len(heard["parts"]) > 1
    whole = voice.synthesize("Hello there, and thank you.", seed=None).samples
    assert np.abs(np.concatenate(heard["parts"]) - whole).max() < 1e-4


def test_a_voice_that_cannot_stream_speaks_whole_texts(
    installed: Path,
    make_kokoro: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    path = make_kokoro()
    model = onnx.load(path)
    nodes, made = model.graph.node, model.graph.node[-1].input[0]
    mean = onnx.helper.make_node("ReduceMean", [made], ["mean"], "/g/Mean", axes=[-1])
    less = onnx.helper.make_node("Sub", [made, "mean"], ["normal"], "/g/Sub")
    nodes[-1].input[0] = "normal"
    for node in (mean, less):
        nodes.insert(len(nodes) - 1, node)
    onnx.save(model, path)
    voice: Any = load(path)
    export_stream(voice, tmp_path / "out", whole=True)
    call = next(voice.calibration_calls(["Hello there."], seed=0))
    given = ("out/stream", call["tokens"][0].tolist())
    wanted = voice.synthesize("Hello there.", seed=0).samples
    for inputs in ({}, {"style": "af_heart"}, {"style": call["style"].tolist()}):
        (sound,) = _spoken(installed, tmp_path / given[0], given[1], inputs)["parts"]
        assert np.abs(np.array(sound) - wanted).max() < 1e-4


def test_a_style_by_the_text_s_length_is_given_it(
    installed: Path,
    make_kitten: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    voice: Any = load(make_kitten(rows=400))
    export_stream(voice, tmp_path / "out", whole=True)
    text, other = "Hello there, you.", "expr-voice-2-f"
    call = next(voice.calibration_calls([text], seed=0))
    ids, stream = call["input_ids"][0].tolist(), tmp_path / "out" / "stream"
    heard = _spoken(installed, stream, ids, {"style": other, "characters": len(text)})
    wanted = voice.speaking_as(Speaking(speaker=other)).synthesize(text, seed=0).samples
    assert np.abs(np.concatenate(heard["parts"]) - wanted).max() < 1e-4
    with pytest.raises(subprocess.CalledProcessError) as error:
        _spoken(installed, stream, ids, {"style": other})
    assert b"follows from the number of characters" in error.value.stderr
