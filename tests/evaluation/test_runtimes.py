"""Other runtimes are timed against the default one, in turns, and may fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.cli import main
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.options import RUNTIMES
from tts_compress.evaluation.runtimes import check_runtimes, measure_runtimes
from tts_compress.evaluation.subject import open_subject
from tts_compress.evaluation.synthesize import Speaker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

_TEXTS = ["b", "aa"]


@pytest.fixture
def speakers(fake_spec: Callable[..., str]) -> Callable[..., tuple[Speaker, Speaker]]:
    """Return what makes two made-up torch models, by what each is like in the runtimes."""

    def make(reference: dict[str, Any], candidate: dict[str, Any]) -> tuple[Speaker, Speaker]:
        first, second = (
            Speaker(
                location=fake_spec(name, kind="torch", sleep=0.05, runtimes=ways),
                shown=name,
                fingerprint="",
            )
            for name, ways in (("ref", reference), ("cand", candidate))
        )
        return first, second

    return make


def test_each_model_is_compared_with_its_own_default(
    speakers: Callable[..., tuple[Speaker, Speaker]],
    fast_options: EvaluationOptions,
    recorder: Any,
) -> None:
    """The reference gains by being compiled and the candidate loses."""
    options = replace(fast_options, runtimes=("compile",), progress=recorder)
    pair = speakers({"compile": {"sleep": 0.01}}, {"compile": {"sleep": 0.15}})
    (found,) = measure_runtimes(pair, _TEXTS, options)
    assert (found.name, found.failure) == ("compile", None)
    assert found.speed is not None
    assert found.latency is not None
    assert found.speed.reference > 1.5
    assert found.speed.candidate < 0.7
    assert found.latency.interval is not None
    assert found.latency.interval[1] < 0.5
    assert found.latency.candidate.min_ms >= 150.0
    assert (found.latency.texts, found.latency.runs, found.latency.threads) == (2, 2, 1)
    assert found.graphs is not None
    assert found.graphs.candidate == 3
    assert recorder.steps == [("time compile", done, 4) for done in range(5)]


def test_the_default_and_the_other_runtime_take_turns(
    fake_spec: Callable[..., str], fast_options: EvaluationOptions, tmp_path: Path
) -> None:
    """After each text was spoken once in both ways."""
    log = tmp_path / "log"
    both = []
    for name in ("r", "c"):
        other = {"compile": {"tag": f"{name}+"}}
        spec = fake_spec(name, kind="torch", log=str(log), tag=name, runtimes=other)
        both.append(Speaker(location=spec, shown=name, fingerprint=""))
    options = replace(fast_options, runtimes=("compile",))
    measure_runtimes((both[0], both[1]), _TEXTS, options)
    turn = ["r:{}", "c:{}", "r+:{}", "c+:{}"]
    warm = ["r:{}", "r+:{}", "c:{}", "c+:{}"]
    expected = [line.format(text) for text in _TEXTS for line in warm]
    expected += [line.format(text) for text in _TEXTS for line in turn * 2]
    assert log.read_text().splitlines() == expected


def test_a_runtime_that_does_not_work_is_said_to_have_failed(
    speakers: Callable[..., tuple[Speaker, Speaker]], fast_options: EvaluationOptions
) -> None:
    """With its reason and the model's name; others are measured all the same."""
    options = replace(fast_options, runtimes=("compile", "plain-attention"))
    pair = speakers({}, {"compile": {"broken": "no C++ compiler"}})
    failed, good = measure_runtimes(pair, _TEXTS, options)
    assert (failed.name, failed.latency, failed.speed) == ("compile", None, None)
    assert failed.failure == "model 'cand': no C++ compiler"
    assert good.name == "plain-attention"
    assert good.failure is None


def test_a_runtime_in_which_a_process_dies_is_said_to_have_failed(
    speakers: Callable[..., tuple[Speaker, Speaker]], fast_options: EvaluationOptions
) -> None:
    options = replace(fast_options, runtimes=("compile",))
    (failed,) = measure_runtimes(speakers({}, {"compile": {"fault": "exit"}}), _TEXTS, options)
    assert failed.failure is not None
    assert "'cand' ended with exit code 3 during 'speak'; it said: out of cheese" in failed.failure


def test_models_that_torch_does_not_run_are_refused(
    fake: ModuleType, fake_spec: Callable[..., str]
) -> None:
    """But only if another runtime is asked for."""
    torch, other = fake.load(fake_spec("t", kind="torch")), fake.load(fake_spec("o"))
    check_runtimes((other, other), ())
    check_runtimes((torch, torch), ("compile",))
    with pytest.raises(EvaluationError, match=r"o\.json' is of family 'fake' and has no runtime c"):
        check_runtimes((torch, other), ("compile",))


@pytest.mark.parametrize("names", [("fast",), ("compile", "compile"), ("compile", "")])
def test_unknown_runtimes_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(EvaluationError, match="give each of plain-attention, compile at most once"):
        EvaluationOptions(runtimes=names)


def test_the_command_line_knows_every_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    """It lists them without importing what evaluates."""
    for name in RUNTIMES:
        assert main(["evaluate", "a.onnx", "b.onnx", "--output", "x", "--runtime", name]) == 2
        assert "no file 'a.onnx'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", "a", "b", "--output", "x", "--runtime", "fast"])
    refused = capsys.readouterr().err
    assert all(name in refused.rpartition("choose from")[2] for name in RUNTIMES)


def test_how_a_torch_model_is_run_is_in_the_report(
    fake: ModuleType, fake_spec: Callable[..., str], tmp_path: Path
) -> None:
    model = fake.load(fake_spec("t", kind="torch", settings={"solver": "4 steps"}))
    assert open_subject(model, tmp_path).identity().settings == {"solver": "4 steps"}
    assert open_subject(fake.load(fake_spec("o")), tmp_path).identity().settings == {}
