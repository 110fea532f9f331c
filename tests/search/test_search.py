"""A search of a tiny voice, from the first trial to the recipe that makes the same bytes again."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from tts_compress.cli import main
from tts_compress.errors import ArtifactError, EvaluationError
from tts_compress.folders import exclusive_folder
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.noise import feed_noise
from tts_compress.recipes.recipe import find_recipe
from tts_compress.search import measure
from tts_compress.search import search as searching
from tts_compress.search.measure import GraphComparison, MeasuredDamage, open_cost
from tts_compress.search.options import Objective, SearchOptions
from tts_compress.search.outcome import Point
from tts_compress.search.search import search

_GROUPS = ["dec.*", "flow.*", "enc_p.*", "dp.*"]
_TEXT = "Good evening to you."
_FEW = """version = 1
name = "few"
language = "en-us"
texts = ["Good evening to you.", "My tooth hurts."]
card = { summary = "", source = "", licence = "", composition = "" }
"""


def _judge(rise: float) -> Callable[..., Any]:
    """Return an evaluation whose words are given: a voice of random weights has none.

    Scheme int8 breaks its bound: of a voice so small its graph is the smallest.
    """

    def evaluate(_: Any, small: GraphModel, *, output: Path, **__: Any) -> Any:
        own = 0.9 if output.name == "int8" else rise
        size = len(small.written("").SerializeToString())
        figures = SimpleNamespace(
            candidate_bytes=size,
            distortion=None,
            speed=1.0,
        )
        return SimpleNamespace(
            headline=lambda: figures,
            wer=SimpleNamespace(reference=0.1, delta=own / 100, interval=(-0.01, 0.012)),
            suite=SimpleNamespace(recognizer="none"),
            write=lambda _: None,
        )

    return evaluate


def test_words_that_nobody_hears_are_refused_at_once(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were said to be within the bound."""
    pytest.importorskip("optuna")
    arguments = ["search", str(tiny_path), "--output", str(tmp_path), "--recognizer", "none"]
    assert main(arguments) == 2
    assert "judges words, and suite 'en-quick' has recognizer 'none'" in capsys.readouterr().err


def test_memory_that_cannot_be_measured_is_refused_at_once(
    tiny_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On Windows all choices would have cost nothing."""
    pytest.importorskip("optuna")
    monkeypatch.setitem(sys.modules, "resource", None)
    arguments = ["search", str(tiny_path), "--output", str(tmp_path), "--objective", "memory"]
    assert main(arguments) == 2
    assert "memory cannot be measured on this system; choose another" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("share", [1.0, 0.51, math.nan])
def test_words_that_nobody_understands_are_refused_before_the_trials(share: float) -> None:
    """A voice whose every word was misheard had "the rise within the bound"."""
    started: Any = object.__new__(searching.Search)
    evaluation = SimpleNamespace(wer=SimpleNamespace(reference=share))
    started._evaluate, started._recipe = lambda *_: (None, evaluation), None
    with pytest.raises(EvaluationError, match=r"nothing was judged: .*; choose another recognizer"):
        started.judge_baseline()


def test_a_folder_is_searched_into_by_one_process(tiny: GraphModel, tmp_path: Path) -> None:
    """A second one measured every layer first, and was refused then."""
    pytest.importorskip("optuna")
    with (
        exclusive_folder(tmp_path, "searching"),
        pytest.raises(ArtifactError, match=f"another process is searching into '{tmp_path}'"),
    ):
        search(tiny, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_search_goes_on_and_its_recipe_makes_the_same_bytes(
    tiny_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(searching, "evaluate", _judge(0.3))
    target = tmp_path / "found"
    arguments = ["search", str(tiny_path), "--output", str(target), "--trials", "8"]
    few = tmp_path / "few.toml"
    few.write_text(_FEW, "utf-8")
    arguments += ["--formats", "int8", "float16", "--texts", "1", "--calibration", str(few)]
    arguments += ["--damage", "1e6", "--groups", *_GROUPS]

    real, measured = GraphComparison.measure, list[int]()

    def interrupted(self: GraphComparison, *given: Any, **keywords: Any) -> Any:
        if len(measured) == 13:
            raise KeyboardInterrupt
        measured.append(1)
        return real(self, *given, **keywords)

    monkeypatch.setattr(GraphComparison, "measure", interrupted)
    assert main(arguments) == 130
    monkeypatch.setattr(GraphComparison, "measure", real)
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["chosen"] == "1"
    assert "cannot show a bound so narrow" in printed["statement"]
    found = json.loads((target / "search.json").read_text("utf-8"))
    assert len(found["points"]) <= 8
    page = (target / "search.html").read_text("utf-8")
    assert "candidate 1" in page

    again = tmp_path / "again"
    recipe = str(target / "recipe.toml")
    command = ["quantize", str(tiny_path), "--recipe", recipe, "--calibration", str(few)]
    command += ["--output", str(again), "--no-time"]
    assert main(command) == 0
    chosen = (target / "voice" / "tiny.onnx").read_bytes()
    assert (again / "tiny.onnx").read_bytes() == chosen
    assert len(chosen) == printed["judged"][0]["size_bytes"]

    assert main(arguments) == 2  # there is a result
    monkeypatch.setattr(searching, "evaluate", _judge(0.7))
    assert main([*arguments, "--force"]) == 1
    assert "No format meets the bound of +0.50 points" in capsys.readouterr().out


def _point(cost: float, distortion: float, floor_db: float = 0.0, moment: float = 0.0) -> Point:
    damage = MeasuredDamage(
        same_noise=0.0,
        duration_frames=0.0,
        distortion=distortion,
        floor_db=floor_db,
        moment=moment,
    )
    return Point(choice={}, cost=cost, damage=damage)


@pytest.mark.parametrize(("words", "costs"), [("kept", [1.0, 2.0]), ("broken", [1.0, 2.0, 9.0])])
def test_what_is_within_the_bound_on_damage_is_judged_by_its_cost(
    words: str, costs: list[float]
) -> None:
    """Unless scheme `int8` costs no more, and keeps the words."""
    started = SimpleNamespace(_options=SearchOptions(damage=0.5))
    started._accepts = lambda one: searching.Search._accepts(cast("Any", started), one)
    baseline = SimpleNamespace(words=words, cost=5.0)
    points = [_point(9.0, 0.1), _point(0.5, 0.51), _point(2.0, 0.5), _point(1.0, 0.2)]
    points += [_point(0.6, 0.1, floor_db=3.1), _point(0.7, 0.1, moment=0.51)]
    admitted = searching.Search._admitted(cast("Any", started), points, cast("Any", baseline))
    assert [point.cost for point in admitted] == costs


class _Small:
    """A voice that was compressed for the so many-th time."""

    def __init__(self, number: int) -> None:
        self.number = number

    def graph(self) -> None:
        return None

    def written(self, _: str) -> onnx.ModelProto:
        return onnx.ModelProto()

    def save(self, folder: Path, **_: Any) -> None:
        folder.write_text(f"{self.number}", "utf-8")


@pytest.mark.parametrize(("least", "chosen", "number"), [("int8", "int8", "1"), ("x", "2", "3")])
def test_the_voice_that_was_judged_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: str, chosen: str, number: str
) -> None:
    """Compressed once more, formats that are chosen by time could be others."""
    made = list[_Small]()

    def compressed(*_: Any) -> _Small:
        made.append(_Small(len(made) + 1))
        return made[-1]

    def evaluate(*given: Any, output: Path, **keywords: Any) -> Any:
        rise = 0.3 if output.name in {least, "2"} else 0.7
        judged = _judge(rise)(*given, output=output.with_name("x"), **keywords)
        judged.wer.interval = None
        return judged

    monkeypatch.setattr(searching, "evaluate", evaluate)
    monkeypatch.setattr(searching.Search, "_compressed", compressed)
    started: Any = object.__new__(searching.Search)
    recipe = find_recipe("piper", "int8")
    started._voice, started._folder = SimpleNamespace(spec="tiny"), tmp_path
    started._options, started._recipe = SearchOptions(), recipe
    started._space = SimpleNamespace(recipe=lambda _: recipe)
    started._cost = lambda _: 2.0
    started._comparison = SimpleNamespace(measure=lambda _: _point(0.0, 0.1).damage)
    started._accepted = {}
    points = [_point(cost, 0.1) for cost in (2.0, 3.0)]
    result = started.judge(points, *started.judge_baseline())
    assert result.chosen == chosen
    assert (tmp_path / "voice").read_text("utf-8") == number
    assert len(made) == 1 + len(result.judged)
    assert len(started._accepted) == 1


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["latency", "memory"])
def test_time_and_memory_are_measured_of_the_graph(objective: Objective, tiny: GraphModel) -> None:
    feeds = list(tiny.calibration_calls([_TEXT], seed=0))
    cost = open_cost(objective, tiny, feeds)(tiny.graph())
    if objective == "latency":
        assert 0.2 < cost < 5.0
    else:
        assert cost > 10 * len(feed_noise(tiny.graph()).SerializeToString())


@pytest.mark.slow
def test_memory_is_that_of_the_artifact(tiny: GraphModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes its sound in chunks, where the formats are onnxruntime's."""
    feeds = [*tiny.calibration_calls(["Hi.", "The quick brown fox."], seed=0)]

    def loops(graph: onnx.ModelProto, _: object) -> float:
        return float(sum(node.op_type == "Loop" for node in graph.graph.node))

    monkeypatch.setattr(measure, "_peak_bytes", loops)
    graph = tiny.graph()
    costs = [
        open_cost("memory", tiny, feeds, in_chunks=in_chunks)(graph) for in_chunks in (False, True)
    ]
    assert costs == [0.0, 1.0]


@pytest.mark.slow
def test_first_sound_ends_with_a_tenth_of_a_second_or_the_whole(
    tiny: GraphModel, compressed: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamic scales are those of the whole time: such a voice is heard at its end."""
    feeds = list(tiny.calibration_calls(["The quick brown fox jumps over the lazy dog."], seed=0))
    whole, spoken = measure._whole, list[onnx.ModelProto]()

    def noted(graph: onnx.ModelProto) -> Callable[..., Any]:
        spoken.append(graph)
        return whole(graph)

    monkeypatch.setattr(measure, "_whole", noted)
    monkeypatch.setattr(measure, "_ROUNDS", 2)
    small, dynamic = (
        cast("GraphModel", load(compressed(scheme))).graph() for scheme in ("int8", "int8-dynamic")
    )
    cost = open_cost("first-audio", tiny, feeds)
    assert cost(small) > 0.0
    assert not spoken
    assert cost(dynamic) > 0.0
    assert spoken == [dynamic]

    speak = measure._first_sound(tiny, small, original=False)
    assert speak is not None
    start, full = speak(feeds[0]).samples, whole(small)(feeds[0])[0].reshape(-1)
    assert 0.1 <= len(start) / tiny.sample_rate < 0.2
    assert len(start) < len(full) / 2
    assert np.array_equal(start, full[: len(start)])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("max-wer-rise", "-1.0"), ("max-wer-rise", "nan"), ("damage", "nan")),
        *(("trials", "0"), ("judge", "0"), ("texts", "0")),
    ],
)
def test_a_number_out_of_range_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    output = tmp_path / "out"
    assert main(["search", "demo", f"--{option}={value}", "--output", str(output)]) == 2
    assert f" is {value}; give " in capsys.readouterr().err
    assert not output.exists()
