"""Voices that speak chunk by chunk say what the whole says, and those that cannot are named."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.models.contract.conftest import build_vocos
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.export.stream import export_stream, stated_inputs
from tts_compress.models import load
from tts_compress.models.base import Speaking
from tts_compress.models.streaming import Pace, StreamRuntime, chunk_ends, measure_pace

_TEXT = "The quick brown fox jumps over the lazy dog, and then it runs away over the hills."
_PLAYER = Path(__file__).parents[3] / "examples" / "stream" / "play.py"
_PLANS = ((1, 2, 5, 30), (7, 64))


def _stitched(
    voice: Any, text: str, plan: tuple[int, ...], monkeypatch: Any, *, seed: int = 3
) -> Any:
    """Return the sound of chunks of so many frames, the last number again and again."""

    def ends(frames: int, *_: Any, **__: Any) -> Any:
        end, steps = 0, iter(plan)
        step = next(steps)
        while end < frames:
            end = min(frames, end + step)
            step = next(steps, step)
            yield end

    with monkeypatch.context() as patch:
        patch.setattr("tts_compress.models.streaming.chunk_ends", ends)
        patch.setattr("tts_compress.models.streaming.MOST_S", 1000)
        return np.concatenate([chunk.samples for chunk in voice.stream(text, seed=seed)])


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads share out the columns of FP32 layers otherwise in a chunk and the whole."""
    if "compressed" in request.fixturenames:  # other tests share it: it states its threads
        request.getfixturevalue("compressed")("int8")
    opened = onnxruntime.SessionOptions

    class Options(opened):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1

    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)


@pytest.mark.slow
def test_integers_are_bit_for_bit_those_of_the_whole(
    compressed: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    voice: Any = load(compressed("int8"))
    whole = voice.synthesize(_TEXT, seed=3).samples
    for plan in _PLANS:
        assert np.array_equal(_stitched(voice, _TEXT, plan, monkeypatch), whole)
    short = voice.synthesize("Hi.", seed=3).samples
    assert np.array_equal(_stitched(voice, "Hi.", (7, 64), monkeypatch), short)


@pytest.mark.slow
def test_reals_are_those_of_the_whole(choir_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A voice of several speakers gives each stage what it needs of the speaker."""
    voice: Any = load(choir_path)
    whole = voice.synthesize(_TEXT, seed=3).samples
    for plan in _PLANS:
        assert np.array_equal(_stitched(voice, _TEXT, plan, monkeypatch), whole)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "most"), [("int8-static", 0), ("fp16", 2**-12)])
def test_masks_that_a_scheme_left_keep_no_layer_waiting_for_the_whole(
    compressed: Callable[[str], Path],
    tiny_path: Path,
    scheme: str,
    most: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are of ones where one text is spoken, so the flow is in stages as the original's is.

    A processor without FP16 arithmetic rounds at a cut, and not within a graph.
    """
    original: Any = load(tiny_path)
    voice: Any = load(compressed(scheme))
    assert [s.before for s in voice.cut().stages] == [s.before for s in original.cut().stages]
    whole = voice.synthesize(_TEXT, seed=3).samples
    for plan in _PLANS:
        assert np.abs(_stitched(voice, _TEXT, plan, monkeypatch) - whole).max() <= most


def test_a_stage_may_read_the_voices_input(
    make_kokoro: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny one has no attention: tokens are cut in time, and the encoder makes sides alone."""
    voice: Any = load(make_kokoro())
    text = "ids: 5 9 12 30 7"
    whole = voice.synthesize(text, seed=None).samples
    assert np.array_equal(_stitched(voice, text, (1, 2), monkeypatch), whole)
    export_stream(voice, tmp_path / "out")
    player = run_path(str(_PLAYER))["Player"](tmp_path / "out")
    assert sum(map(len, player.speak([0, 5, 9, 12, 30, 7, 0]))) == len(whole)


@pytest.mark.parametrize("vocoder", ["hifigan", "vocos"])
def test_a_chain_streams_its_last_graph(
    make_matcha: Callable[..., Path], vocoder: str, ids_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spectra become samples on the host, where frames overlap."""
    path = make_matcha(*([build_vocos()] if vocoder == "vocos" else []))
    voice: Any = compress(load(path), "int8", calibration=ids_set, quality="fast")
    text = f"ids: {' 5 9 12 30 7' * 20}"
    whole = voice.synthesize(text, seed=3).samples
    for plan in _PLANS:
        assert np.array_equal(_stitched(voice, text, plan, monkeypatch), whole)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fp32", "int8"])
def test_sines_of_any_length_are_those_of_the_whole(
    make_matcha_vocos: Callable[..., Path],
    scheme: str,
    ids_set: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels compute the last few values of a tensor one by one, with another last bit.

    A centred Vocos cuts off half a window at the end, too: the last frame alone adds no sound.
    """
    voice: Any = load(make_matcha_vocos())
    if scheme == "int8":
        voice = compress(voice, scheme, calibration=ids_set, quality="fast")
    for length in range(1, 30):
        text = f"ids: {' '.join(map(str, range(1, length + 1)))}"
        whole = voice.synthesize(text, seed=length).samples
        for plan in ((1,), (7, 64)):
            stitched = _stitched(voice, text, plan, monkeypatch, seed=length)
            assert np.array_equal(stitched, whole), (length, plan)


def test_stages_are_played_beside_a_folder_of_graphs(
    make_matcha: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were looked for in that folder; graphs before them had all threads there are."""
    graph = make_matcha()
    folder = tmp_path / "voice" / "graphs"
    shutil.copytree(graph.parent, folder)
    stated = 'version = 1\nbase = "matcha"\nfolder = "graphs"\n'
    (folder.parent / "contract.toml").write_text(stated, encoding="utf-8")
    original: Any = load(f"contract:{folder / graph.name}")
    export_stream(original, tmp_path / "out")
    voice: Any = load(f"contract:{tmp_path / 'out' / 'graphs' / graph.name}")
    opened, threads = voice.sessions.open, list[Any]()

    def spy(*sources: Any, **options: Any) -> Any:
        threads.append(options.get("threads"))
        return opened(*sources, **options)

    monkeypatch.setattr(voice.sessions, "open", spy)
    runtime = voice.open_runtime(threads=1)
    assert isinstance(runtime, StreamRuntime)
    opened_at_once = len(threads)
    assert runtime.speak("ids: 5 6").samples.size
    assert threads == [1] * opened_at_once
    with pytest.raises(ModelError):  # not the file of a graph that is another one in memory
        voice.with_graphs({"": voice.graph()}, None).open_runtime(threads=1)


def test_what_is_not_local_in_time_is_refused_by_name(make_matcha: Callable[..., Path]) -> None:
    path = make_matcha()
    vocoder = next(path.parent.glob("hifigan*.onnx"))
    model = onnx.load(vocoder)
    made = model.graph.node[-1].input[0]
    model.graph.node[-1].input[0] = "normal"
    mean = onnx.helper.make_node("ReduceMean", [made], ["mean"], "/g/Mean", axes=[-1])
    model.graph.node.insert(len(model.graph.node) - 1, mean)
    less = onnx.helper.make_node("Sub", [made, "mean"], ["normal"], "/g/Sub")
    model.graph.node.insert(len(model.graph.node) - 1, less)
    onnx.save(model, vocoder)
    voice: Any = load(path)
    with pytest.raises(ModelError, match="ReduceMean '/g/Mean' takes statistics over time"):
        next(voice.stream("ids: 5 6"))


def test_a_player_is_told_the_speaker_who_speaks_here(make_vits: Callable[..., Path]) -> None:
    """It was the first one, whichever is the voice's default."""
    path = make_vits(speakers=3)
    stated = 'version = 1\nbase = "vits"\ninput.sid.value = 2\n'
    path.with_name("contract.toml").write_text(stated, encoding="utf-8")
    voice: Any = load(path)
    for chosen, number in ((voice, 2), (voice.speaking_as(Speaking(speaker=1)), 1)):
        inputs: Any = stated_inputs(chosen)
        assert inputs["sid"] == ([number], "int64")


@pytest.mark.parametrize("name", ["make_matcha", "make_melo"])
def test_a_page_plays_voices_of_one_graph(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    """It makes no tones for a text: it gave each those of another one."""
    voice: Any = load(request.getfixturevalue(name)())
    with pytest.raises(ModelError, match=r"has several graphs, .*inputs as long as the text, whi"):
        export_stream(voice, tmp_path / "out", whole=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_player_says_what_the_whole_says(tiny_path: Path, tmp_path: Path) -> None:
    """With scales of zero, noise is none; the folder holds the unsplit voice as well."""
    voice: Any = load(tiny_path)
    files = export_stream(voice, tmp_path / "out")
    assert all(path.stat().st_mode & 0o044 for path in files[0].parent.iterdir()), "others may read"
    player = run_path(str(_PLAYER))["Player"](tmp_path / "out")
    call = next(voice.calibration_calls([_TEXT], seed=0))
    scales, kind = player.config["inputs"]["scales"]
    player.config["inputs"]["scales"] = ([0.0, scales[1], 0.0], kind)
    chunks = [*player.speak(call["input"][0].tolist())]
    whole = voice.synthesize(_TEXT, seed=None).samples
    assert len(chunks) > 1
    assert np.abs(np.concatenate(chunks) - whole).max() < 1e-5
    again: Any = load(tmp_path / "out" / "tiny.onnx")
    first, *rest = again.open_runtime(threads=1).stream(_TEXT)
    assert rest
    assert len(first.samples) < len(whole) / 2


def test_the_player_s_pace_is_that_of_the_frames_it_computed() -> None:
    """That of a last, short chunk counted more: the next sentence broke off."""
    code = run_path(str(_PLAYER))["Player"]
    frame_s, clock, done = 0.0116, [0.0], [0]

    def advance(_number: int, end: int) -> None:
        frames = min(end // player.hop, size) - done[0]
        clock[0] += 2 * frame_s * frames  # twice as slow as speech
        done[0] += frames
        player.kept[-1] = np.zeros(frames)

    player = code.__new__(code)
    size, player.hop, player.pace = 62, 256, 0.0
    player.config = {"inputs": {}, "first_frames": 9, "most_frames": 100}
    player.config["sample_rate"] = player.hop / frame_s
    player.stages = [{"reads": ["x"], "sides": [], "axis": 0, "hop": player.hop, "extra": 0}]
    player.encoder = SimpleNamespace(run=lambda *_: [np.zeros(size)])
    player.advance = advance
    code.speak.__globals__["perf_counter"] = lambda: clock[0]
    for _ in range(2):
        done[0] = 0
        assert sum(map(len, player.speak([1]))) == size
        assert player.pace == pytest.approx(2 * frame_s)


def test_pace_is_that_of_the_frames_an_utterance_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short first sentence made the machine seem nine times as fast: later ones broke off."""
    clock, size = [0.0], 12

    def until(frames: int) -> None:
        clock[0] += 0.01 * min(frames, size)

    monkeypatch.setattr("tts_compress.models.streaming.perf_counter", lambda: clock[0])
    flow: Any = SimpleNamespace(frames=size, until=until)
    assert measure_pace(lambda: flow, 9).seconds(100) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_further_sentence_counts_on_what_still_plays(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with a long chunk: nobody waits for it."""
    asked: list[float] = []

    def ends(frames: int, *_: Any, ahead_s: float, **__: Any) -> Any:
        asked.append(ahead_s)
        yield frames

    monkeypatch.setattr("tts_compress.models.streaming.chunk_ends", ends)
    for module in ("streaming", "onnx_voice"):
        monkeypatch.setattr(f"tts_compress.models.{module}.perf_counter", lambda: 5.0)
    voice: Any = load(tiny_path)
    first, second = voice.stream("Shut the gate. Open it.", seed=0)
    assert asked == [0.0, pytest.approx(first.duration_s)]
    assert second.duration_s > 0
    sizes: Any = {"first": 9, "most": 130}
    for ahead_s, expected in ((0.0, 9), (0.1, 20), (1.0, 130)):
        assert next(chunk_ends(1000, Pace(0.01, 0.002), 0.0116, **sizes, ahead_s=ahead_s)) == (
            expected
        )


@pytest.mark.parametrize("pace", [Pace(0.0, 0.001), Pace(0.05, 0.004), Pace(0.01, 0.02)])
def test_sound_never_runs_out(pace: Pace) -> None:
    """On the last machine, slower than speech, most is there before the first sound."""
    frame_s, frames = 0.0116, 1000
    ends = [*chunk_ends(frames, pace, frame_s, first=9, most=130)]
    assert ends[-1] == frames
    assert ends == sorted({*ends})
    heard = pace.seconds(ends[0])
    clock = heard
    for before, end in pairwise(ends):
        clock += pace.seconds(end - before)
        assert clock <= heard + before * frame_s, (before, end)
    assert ends[0] == 9 or pace.start_s
