"""`python -m benchmarks.front`: every way to INT8 on trained voices, by speed and sound."""

import math
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clips import ASSETS, SAMPLE_RATE, Clip, middle_clip, read_clips, split, write_feeds
from benchmarks.command import Add, command
from benchmarks.contestants import Contestant, fp32_contestant, make_contestant
from benchmarks.front.report import FASTEST, Row, VoiceFigures, write_figures
from benchmarks.report import write_json
from benchmarks.sentences import Sentence, feeds_of, run_request
from benchmarks.timing import Plan, time_in_turns
from benchmarks.voices.piper import make_sentences
from tests.processors import player
from tests.processors.emulation import NATIVE, OLDER, Processor, open_processor
from tests.processors.packages import NotAvailableError
from tts_compress.artifact import atomic_directory, sha256_of
from tts_compress.audio import Audio
from tts_compress.environment import describe_environment
from tts_compress.errors import EvaluationError, TTSCompressError
from tts_compress.evaluation.gates import gate, read_gates
from tts_compress.evaluation.metric import Audios, find_metrics
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import AudioPairs, Run, UtterancePair, speak_pairs
from tts_compress.evaluation.store import Store
from tts_compress.evaluation.subject import give_speakers, open_subject
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.session import Feeds
from tts_compress.progress import Progress
from tts_compress.terminal import progress_bars, show

_STOCK = ("dynamic-quint8", "dynamic-default", "static", "static-conv")
_OURS = (FASTEST, "int8@good", "int8@high", "int8-weight-only")
_VOCODER = "hifigan-v2"
_VOICES = {
    "demo": None,
    "hfc": "trained-voices/hfc/hfc.onnx",
    "kristin": "trained-voices/kristin/kristin.onnx",
    _VOCODER: "hifigan-v2-ljspeech/generator_v2.fp32.onnx",
}
"""Files of the voices of others, in the folder of assets."""

_SECONDS = 5.0
"""Length of the sentence that is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How candidates are compared."""

    suite: Suite
    plan: Plan | None
    """None where nothing is timed."""

    processor: Processor
    work: Path
    progress: Progress

    @property
    def options(self) -> EvaluationOptions:
        """Options of the processes that speak."""
        program = ("-P", "-m", "tts_compress.evaluation.worker")
        worker = (*self.processor.command, *program)
        return EvaluationOptions(worker=worker, timeout_s=3600, progress=self.progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice, or a bare vocoder with the clips that it is calibrated on and those it plays."""

    name: str
    files: tuple[Path, ...]
    sample_rate: int
    sentence: Sentence
    calibration: Path | None = None
    clips: Sequence[Clip] = ()


def _choose(options: Namespace) -> dict[str, Path | None]:
    chosen = {}
    for name in options.only or _VOICES:
        path = None if (place := _VOICES[name]) is None else options.assets / place
        if path is None or path.is_file():
            chosen[name] = path
        else:
            show(f"skipped: '{options.assets}' holds no {place}; name its folder by --assets")
    return chosen


def _open(name: str, path: Path | None, settings: Settings, assets: Path) -> Voice:
    if path is not None and name == _VOCODER:
        return _open_vocoder(path, settings, assets)
    model = load(path or "demo")
    assert isinstance(model, GraphModel)
    return Voice(
        name=name,
        files=model.files().weights,
        sample_rate=model.sample_rate,
        sentence=timed_sentence(model, settings.suite),
    )


def timed_sentence(model: GraphModel, suite: Suite) -> Sentence:
    """Return a sentence that is as long in every run."""
    if model.family == "piper":
        [sentence] = make_sentences(model, [_SECONDS])
        return sentence
    texts = sorted((utterance.text for utterance in suite.utterances), key=len)
    text = texts[len(texts) // 2]
    feeds = feeds_of(model, text)
    return Sentence(name=text, tokens=0, feeds=feeds, request=run_request(feeds))


def _open_vocoder(graph: Path, settings: Settings, assets: Path) -> Voice:
    """Return the vocoder, which is judged on the clips that it is not calibrated on."""
    fold, _ = split(read_clips(assets, 32))
    settings.work.mkdir(parents=True, exist_ok=True)
    clips = fold.judged[: len(settings.suite.utterances)]
    timed = middle_clip(clips)
    feeds: Feeds = {"mel": timed.mel}
    return Voice(
        name=_VOCODER,
        files=(graph,),
        sample_rate=SAMPLE_RATE,
        sentence=Sentence(name=timed.name, tokens=0, feeds=feeds, request=run_request(feeds)),
        calibration=write_feeds(settings.work / "feeds.npz", fold.calibration),
        clips=clips,
    )


def _contestants(voice: Voice, settings: Settings) -> list[Contestant]:
    kinds: dict[str, Any] = dict.fromkeys(_STOCK, "peer") | dict.fromkeys(_OURS, "scheme")
    made = [
        make_contestant(kind, name, voice.files, settings.work, voice.calibration)
        for name, kind in kinds.items()
    ]
    return [fp32_contestant(voice.files), *made]


def measure(voice: Voice, contestants: Sequence[Contestant], settings: Settings) -> VoiceFigures:
    """Return everything about a voice and its candidates, of which the first is FP32."""
    reference, *others = contestants
    rows = [_judge(voice, reference, candidate, settings) for candidate in others]
    sound = [index for index, row in enumerate(rows) if row.error is None]
    if settings.plan is not None:
        running = [reference, *(others[index] for index in sound)]
        rest = ([voice.sentence], voice.sample_rate, settings.plan, settings.progress)
        _, *timings = time_in_turns(running, *rest)
        for index, [timing] in zip(sound, timings, strict=True):
            rows[index] = replace(rows[index], timing=asdict(timing))
    spoken = [utterance.text for utterance in settings.suite.utterances]
    return VoiceFigures(
        name=voice.name,
        processor=settings.processor.name,
        size_bytes=reference.size_bytes(),
        suite="LJSpeech" if voice.clips else settings.suite.name,
        texts=[clip.name for clip in voice.clips] or spoken,
        environment=describe_environment(),
        rows=rows,
    )


def _judge(voice: Voice, reference: Contestant, candidate: Contestant, settings: Settings) -> Row:
    seconds = candidate.cost.seconds if candidate.cost else None
    row = Row(kind=candidate.kind, name=candidate.name, seconds=seconds, error=candidate.error)
    if candidate.error is not None:
        return row
    try:
        run = _compare(voice, reference.path, candidate.path, settings)
    except (TTSCompressError, RuntimeError) as error:
        return replace(row, error=str(error).strip().splitlines()[-1])
    gates = read_gates("default")
    kept = tuple(one for one in gates.gate if "words" not in one.groups)  # none is recognized
    gates = gates.model_copy(update={"gate": kept})
    wanted = {"pause_floor", "signal", *(g.metric.partition(".")[0] for g in gates.gate)}
    values = {m.name: m.compute(run) for m in find_metrics() if m.name in wanted}
    metrics = {name: v.model_dump(mode="json") for name, v in values.items() if v is not None}
    failed = [one.gate.metric for one in gate(metrics, gates).rows if not one.passed]
    rises = [after - before for before, after in run.observations("pause_floor")]
    return replace(
        row,
        size_bytes=candidate.size_bytes(),
        size_ratio=reference.size_bytes() / candidate.size_bytes(),
        metrics=metrics,
        rises_db=[rise if math.isfinite(rise) else None for rise in rises],
        moved=[not one.same_timing for one in run.observations("signal")],
        failed=list(dict.fromkeys(failed)),
    )


def _compare(voice: Voice, reference: Path, candidate: Path, settings: Settings) -> Run:
    models: Any = None  # nobody asks for their words and times
    store = Store(settings.work / settings.processor.name)
    if voice.clips:
        played = [_play(graph, voice.clips, store, settings) for graph in (reference, candidate)]
        pairs = [
            _pair(index, *of) for index, of in enumerate(zip(voice.clips, *played, strict=True))
        ]
    else:
        models = give_speakers((open_subject(reference, None), open_subject(candidate, None)), None)
        speech = AudioPairs(settings.suite, store)
        with closing(speak_pairs(models, speech, settings.options)) as audios:
            deque(audios, maxlen=0)
        pairs = speech.pairs
    return Run(
        suite=settings.suite,
        models=models,
        store=store,
        options=settings.options,
        pairs=pairs,
        hypotheses={},
        measured={},
    )


def _play(graph: Path, clips: Sequence[Clip], store: Store, settings: Settings) -> list[Audio]:
    """Return what a vocoder makes of clips, in a process on the chosen processor."""
    folder = store.root / f"{sha256_of(graph)[:16]}-{len(clips)}"
    if not folder.is_dir():
        with atomic_directory(folder, marker="") as partial:
            jobs: list[str | Path] = []
            for clip in clips:
                feeds = partial / f"{clip.name}.feeds.npz"
                np.savez(feeds, mel=clip.mel)
                jobs += [graph, feeds, partial / f"{clip.name}.npz"]
            settings.processor.run([player.__file__, *jobs])
    audios = []
    for clip in clips:
        with np.load(folder / f"{clip.name}.npz") as values:
            samples = values[values.files[0]].reshape(-1)
        audios.append(Audio(samples=samples, sample_rate=SAMPLE_RATE))
    return audios


def _pair(index: int, clip: Clip, before: Audio, after: Audio) -> UtterancePair:
    """Return a clip played by both; without noise the reference is its own other rendering."""
    audios = Audios(reference=before, candidate=after, other_seed=before)
    return UtterancePair(
        index=index,
        seed=0,
        text=clip.name,
        speaker=None,
        transcript=clip.transcript,
        audio={},
        seconds={"reference": before.duration_s, "candidate": after.duration_s},
        kept={},
        observed={m.name: m.observe(audios) for m in find_metrics() if m.observe},
    )


def _options(add: Add) -> None:
    add("--only", nargs="+", choices=_VOICES, help=", ".join(_VOICES))
    add("--processor", choices=(NATIVE.name, *OLDER), default=NATIVE.name, help="that plays")
    add("--texts", type=int, default=24, help="or clips, at most (%(default)s)")
    add("--rounds", type=int, default=30, help="timed runs of each (%(default)s)")
    add("--assets", type=Path, default=ASSETS, metavar="DIR", help="of the voices of others")
    add("--output", type=Path, default=Path("out/bench-voices"), metavar="DIR", help="of all files")
    stem, files = Path("eval/reports/voices"), "of .json, .md and .svg (%(default)s)"
    add("--report", type=Path, default=stem, metavar="STEM", help=files)


@command("benchmarks.front", _options)
def main(options: Namespace) -> int:
    """Time and judge every way to INT8 on trained voices."""
    try:
        processor = open_processor(options.processor)
    except NotAvailableError as error:
        raise EvaluationError(str(error)) from error
    figures = options.output / options.processor
    suite = read_suite("en-quick")
    few = {"utterances": suite.utterances[: options.texts], "seeds": (0,)}
    native = options.processor == NATIVE.name
    for name, path in _choose(options).items():
        with progress_bars() as progress:
            settings = Settings(
                suite=suite.model_copy(update=few),
                plan=Plan(threads=(1,), rounds=options.rounds, warm_ups=3) if native else None,
                processor=processor,
                work=options.output / "work" / name,
                progress=progress,
            )
            voice = _open(name, path, settings, options.assets)
            measured = measure(voice, _contestants(voice, settings), settings)
        write_json(figures / f"{name}.json", asdict(measured))
    # Voices of earlier runs stay in the report: each may have a run of its own.
    paths = [path for name in _VOICES if (path := figures / f"{name}.json").is_file()]
    voices = [VoiceFigures.from_json(path.read_text(encoding="utf-8")) for path in paths]
    suffix = "" if native else f"-{options.processor}"
    stem = options.report.with_name(options.report.name + suffix)
    show(*(f"written: {path}" for path in write_figures(voices, stem)))
    ours = [row for voice in voices for row in voice.rows if row.kind == "scheme"]
    return 1 if any(row.error for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
