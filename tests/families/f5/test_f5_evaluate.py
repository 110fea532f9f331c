"""A tiny F5-TTS model, compressed and evaluated by the commands that people type."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.cli import main
from tts_compress.models import load
from tts_compress.models.f5 import F5Model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SUITE = """
version = 1
name = "two-texts"
language = "en-us"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = [3]
utterances = [{ text = "Hello there." }, { text = "Shut the gate." }]

[prompt]
audio = "voice.wav"
text = "six seven eight."

[card]
summary = "s"
source = "s"
licence = "Apache-2.0"
composition = "c"
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a suite with a voice of its own: a second and a half of a higher buzz."""
    pytest.importorskip("pocketsphinx")
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("suite")
    time = np.arange(36_000) / 24_000
    buzz = sum(np.sin(2 * np.pi * 190 * k * time) / k for k in range(1, 12))
    soundfile.write(folder / "voice.wav", 0.08 * buzz, 24_000)
    (folder / "suite.toml").write_text(_SUITE, encoding="utf-8")
    return folder / "suite.toml"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, tiny_f5_dir: Path) -> Path:
    """Return the tiny model in INT8, made by the command line."""
    target = tmp_path_factory.mktemp("artifacts") / "int8"
    assert main(["quantize", _spec(tiny_f5_dir), "--scheme", "int8", "--output", str(target)]) == 0
    return target


def _spec(folder: Path) -> str:
    return f"f5-tts:{folder}?nfe_step=2"


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_a_compressed_model_is_evaluated_from_the_command_line(
    tmp_path: Path, tiny_f5_dir: Path, artifact: Path, suite: Path
) -> None:
    """By the suite's voice; every file of the report is there, with and without fused attention."""
    arguments = [_spec(tiny_f5_dir), str(artifact), "--suite", str(suite), "--output"]
    out = tmp_path / "report"
    assert main(["evaluate", *arguments, str(out), "--runtime", "plain-attention"]) == 0
    assert {"report.html", "report.json", "report.md", "wav"} <= {p.name for p in out.iterdir()}
    found = _report(out)
    assert (found["suite"]["texts"], found["suite"]["seeds"]) == (2, [3])
    assert found["wer"]["counts"]["reference"]["reference_tokens"] == 5
    assert found["wer"]["interval"][0] <= found["wer"]["delta"] <= found["wer"]["interval"][1]
    assert found["size"]["ratio"] > 1.5
    # The same noise and the same voice: what differs is what compression did.
    assert found["signal"]["same_timing"] == 1.0
    assert found["signal"]["snr_db"] > 15
    assert found["teacher_forced"] is None
    settings = [found[side]["settings"] for side in ("reference", "candidate")]
    assert [how["solver"] for how in settings] == ["2 steps, guidance 2"] * 2
    assert [how["recording"] for how in settings] == ["voice.wav"] * 2
    (plain,) = found["runtimes"]
    assert (plain["name"], plain["failure"]) == ("plain-attention", None)
    assert 0.2 < plain["speed"]["reference"] < 5
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Speed, plain attention" in page
    assert "not run alike" not in page
    # Packages are imported before memory is first measured, so that the model is what is counted.
    for side in found["memory"].values():
        assert 0 < side["peak_bytes"] - side["idle_bytes"] < 0.5 * side["peak_bytes"]
    for side in found["load"].values():
        assert 0 < side["open_ms"] < 30_000


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip without a C++ compiler; afterwards torch.compile is set as it was, its cache gone."""
    torch = pytest.importorskip("torch")
    builder = pytest.importorskip("torch._inductor.cpp_builder")
    config = pytest.importorskip("torch._dynamo.config")
    try:
        builder.get_cpp_compiler()
    except RuntimeError as error:
        pytest.skip(f"no C++ compiler: {error}")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    names = (
        "fail_on_recompile_limit_hit",
        "allow_unspec_int_on_nn_module",
        "recompile_limit",
        "accumulated_recompile_limit",
    )
    with config.patch({name: getattr(config, name) for name in names}):
        yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_compiled_blocks_say_the_same_and_are_counted(tiny_f5_dir: Path, artifact: Path) -> None:
    """Whatever stays uncompiled in them; and it can be taken back."""
    from tts_compress.evaluation.torch_runtime import RuntimeSwitch, compiled_graphs

    for spec in (_spec(tiny_f5_dir), artifact):
        model = load(spec)
        assert isinstance(model, F5Model)
        expected = model.synthesize("hello there.", seed=1).samples
        before = compiled_graphs()
        switch = RuntimeSwitch(model)
        switch.choose("compile")
        compiled = model.synthesize("hello there.", seed=1).samples
        assert compiled_graphs() > before
        np.testing.assert_allclose(compiled, expected, atol=2e-3)
        assert not np.array_equal(compiled, expected)
        switch.choose(None)
        np.testing.assert_array_equal(model.synthesize("hello there.", seed=1).samples, expected)
