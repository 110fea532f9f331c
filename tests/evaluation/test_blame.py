"""The component that did the damage is found, with the work of an evaluation."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tts_compress.artifact import MANIFEST_NAME
from tts_compress.cli import main
from tts_compress.errors import ModelError
from tts_compress.evaluation import EvaluationOptions, Suite, SuiteText
from tts_compress.evaluation.blame import _values, find_blame
from tts_compress.evaluation.pairs import AudioPairs, Run, speak_pairs
from tts_compress.evaluation.run import evaluate
from tts_compress.evaluation.store import Store
from tts_compress.evaluation.subject import open_subject
from tts_compress.models import load
from tts_compress.models.base import GraphModel

_ALL = "signal.log_mel_distance_db"
_SAME = "signal.same_timing_log_mel_distance_db"


@pytest.fixture
def suite(small_suite: Suite) -> Suite:
    texts = tuple(SuiteText(text=text) for text in ("Seven small boats.", "We saw the sea."))
    return small_suite.model_copy(update={"utterances": texts})


def _damaged(artifact: Path, component: str, target: Path) -> Path:
    """Write an INT8 voice with the weights of one component in two bits."""
    voice: Any = load(artifact)
    graph = voice.graph()
    for tensor in graph.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if f"{component}." in tensor.name and values.dtype.itemsize < 4 and values.ndim > 1:
            step = 64 if values.dtype.itemsize == 1 else np.abs(values).max() / 2  # FP16
            tensor.CopyFrom(numpy_helper.from_array(values // step * step, tensor.name))
    found: Path = voice.with_graphs({"": graph}, voice.manifest).save(target)
    return found


@pytest.fixture
def run(
    tiny_path: Path,
    compressed: Callable[[str], Path],
    suite: Suite,
    store: Store,
    tmp_path: Path,
    recorder: Any,
) -> Run:
    """An evaluation whose candidate has a bad flow, as far as components need it."""
    options = EvaluationOptions(jobs=1, progress=recorder)
    candidate = _damaged(compressed("int8-weight-only"), "flow", tmp_path / "bad")
    models = open_subject(tiny_path, tmp_path), open_subject(candidate, tmp_path)
    speech = AudioPairs(suite, store)
    deque(speak_pairs(models, speech, options), maxlen=0)
    return Run(
        suite=suite,
        models=models,
        store=store,
        options=options,
        pairs=speech.pairs,
        hypotheses={},
        measured={},
    )


@pytest.mark.slow
def test_planted_damage_is_ranked_first_and_resumed(
    run: Run, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Mock(wraps=open_subject)
    monkeypatch.setattr("tts_compress.evaluation.blame.open_subject", opened)
    found = find_blame(run)
    # As the whole models were opened: a model of several languages would guess.
    assert {call.args[2:] for call in opened.call_args_list} == {(None, run.suite.language)}
    assert (found.texts, found.seed) == (2, 0)
    assert found.parts[0].component == "flow"
    assert found.parts[0].role == "flow"
    assert {part.component for part in found.parts} == {"enc_p", "dp", "flow", "dec"}
    ranked = [part.values[found.ranked_by] or 0.0 for part in found.parts]
    assert ranked == sorted(ranked, reverse=True)
    assert ranked[0] > 2 * ranked[1]
    distances: Any = [part.values[_ALL] for part in found.parts]
    assert max(distances) == distances[0] == pytest.approx(found.whole[_ALL], rel=0.25)
    assert found.ranked_by == "distortion.value"
    assert found.together[found.ranked_by] == pytest.approx(sum(ranked))
    same: Any = [part.values[_SAME] for part in found.parts]
    assert found.together[_SAME] == pytest.approx(sum(value**2 for value in same) ** 0.5)
    assert ("blame flow", 2, 2) in recorder.steps

    # Everything is in the store: nothing is started again.
    again = replace(run, options=replace(run.options, worker=("/bin/false",)))
    assert find_blame(again) == found

    # Where mu-law adds nothing that distortion could be a share of, the next finest measure ranks.
    monkeypatch.setattr(
        "tts_compress.evaluation.blame._values",
        lambda run: _values(run) | {"distortion.value": None},
    )
    coarser = find_blame(again)
    assert (coarser.ranked_by, coarser.together["distortion.value"]) == (_SAME, None)
    assert coarser.parts[0].component == "flow"


def test_a_candidate_without_a_manifest_is_refused_before_anything_is_spoken(
    tiny: GraphModel, compressed: Callable[[str], Path], suite: Suite, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    load(compressed("int8")).save(foreign)
    (foreign / MANIFEST_NAME).unlink()
    options = EvaluationOptions(blame=True, worker=("/bin/false",))
    voice = next(foreign.glob("*.onnx"))
    onnx.checker.check_model(str(voice))
    with pytest.raises(ModelError, match="has no manifest"):
        evaluate(tiny, voice, suite=suite, options=options)


def test_the_command_line_asks_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def noted(*_: object, options: EvaluationOptions, **__: object) -> None:
        asked.append(options.blame)
        raise ModelError("enough")

    monkeypatch.setattr("tts_compress.evaluation.run.evaluate", noted)
    common = ["evaluate", "a", "b", "--output", str(tmp_path)]
    assert [main([*common, "--blame"]), main(common)] == [2, 2]
    assert asked == [True, False]
