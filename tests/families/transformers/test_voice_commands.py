"""Voices of transformers, by the commands that people type."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tts_compress.cli import main
from tts_compress.errors import ModelError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.models import load
from tts_compress.models.execution import Execution


def test_a_voice_is_inspected(vits_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"transformers:{vits_dir}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = json.dumps(found)
    for part in ("duration predictor", "flow", "decoder", "16000 Hz", "eng"):
        assert part in text


def test_a_device_that_is_not_there_ends_the_command(
    vits_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    spec, wav = f"transformers:{vits_dir}", str(tmp_path / "a.wav")
    words = ["synthesize", spec, "a few words", "--output", wav, "--device"]
    assert main([*words, "auto"]) == 0
    capsys.readouterr()
    quantize = ["quantize", spec, "--output", str(tmp_path / "small"), "--device"]
    for command in ([*words, "cuda", "--force"], [*quantize, "cuda:0"]):
        told = refused(*command)
        assert "there is no CUDA device for torch" in told
    with pytest.raises(ModelError, match="runs in torch, without a provider; give a device"):
        load(spec, provider="CUDAExecutionProvider")


def test_a_worker_computes_where_its_model_does(
    vits_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports name the place, and work that was done elsewhere is not taken up."""
    import torch

    from tts_compress.evaluation import subject, worker

    before = torch.get_float32_matmul_precision()
    given: list[Any] = []
    monkeypatch.setattr(subject, "Worker", lambda *words, **named: given.append((words, named)))
    spec, options = f"transformers:{vits_dir}", EvaluationOptions()
    plain = subject.open_subject(spec, None)
    placed = subject.open_subject(
        spec, None, execution=Execution(device="auto", matmul_precision="medium")
    )
    for each in (plain, placed):
        with suppress(AttributeError), each.start(options):
            pass
    assert [named["setting"] for _, named in given] == [None, '{"matmul_precision": "medium"}']
    assert placed.identity().settings == plain.identity().settings | {"matmul_precision": "medium"}
    assert placed.fingerprint != plain.fingerprint
    torch.set_float32_matmul_precision("highest")
    host = worker._ModelHost(spec, given[1][1]["setting"])
    assert torch.get_float32_matmul_precision() == "medium"
    assert host.inspect()["gpu"] == {}
    torch.set_float32_matmul_precision(before)


def test_a_worker_measures_the_gpu_while_it_speaks(
    vits_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tests.pretend import pretend_gpu
    from tts_compress.evaluation.worker import _ModelHost

    stats = {"allocated_bytes.all.peak": 7, "reserved_bytes.all.current": 9}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: stats, raising=False)
    with pretend_gpu(monkeypatch):
        host = _ModelHost(f"transformers:{vits_dir}", '{"device": "cuda"}')
        assert host.inspect()["gpu"] == {}, "it has not spoken"
        host.open_runtime(threads=1, warm=True)
        assert host.speak("a few words")["audio_s"] > 0
        use = host.inspect()["gpu"]
    assert (use["peak_bytes"], use["reserved_bytes"], use["fragmentation"]) == (7, 9, 0)
