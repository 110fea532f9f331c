"""One evaluation, from two models to the finished document."""

import sys
import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from threadpoolctl import threadpool_limits

from tts_compress.compression.hybrid import compressed_components
from tts_compress.config import data_names
from tts_compress.environment import describe_processor
from tts_compress.errors import EvaluationError, TTSCompressWarning
from tts_compress.evaluation.blame import find_blame
from tts_compress.evaluation.metric import Pair, find_metrics
from tts_compress.evaluation.metrics.error_rates import count_edits, find_doubts
from tts_compress.evaluation.normalizers import counts_characters
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.page_audio import encode_pairs, make_test
from tts_compress.evaluation.pairs import (
    AudioPairs,
    Run,
    UtterancePair,
    count_audios,
    speak_pairs,
)
from tts_compress.evaluation.result import (
    Blame,
    Evaluation,
    ModelIdentity,
    Speech,
    StageTime,
    SuiteIdentity,
    Utterance,
)
from tts_compress.evaluation.store import (
    Analyzer,
    analyze,
    find_analyzers,
    find_recognizer,
    open_store,
)
from tts_compress.evaluation.subject import Subject, give_speakers, open_subject
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.folders import temporary_folder
from tts_compress.models.base import OnnxGraph, TTSModel
from tts_compress.models.integers import count_integer_layers, find_hazards
from tts_compress.models.speakers import primary_language
from tts_compress.progress import Stopwatch

if TYPE_CHECKING:
    from torch import nn

    from tts_compress.evaluation.modules import ModuleEvaluation


@overload
def evaluate(
    reference: "nn.Module",
    candidate: "nn.Module",
    *,
    batches: Iterable[Any],
    output: Path | str | None = None,
    options: EvaluationOptions | None = None,
) -> "ModuleEvaluation": ...


@overload
def evaluate(
    reference: TTSModel | str | Path,
    candidate: TTSModel | str | Path,
    *,
    suite: Suite | str | Path = "en-quick",
    output: Path | str | None = None,
    options: EvaluationOptions | None = None,
) -> Evaluation: ...


def evaluate(
    reference: Any,
    candidate: Any,
    *,
    suite: Suite | str | Path = "en-quick",
    batches: Iterable[Any] | None = None,
    output: Path | str | None = None,
    options: EvaluationOptions | None = None,
) -> "Evaluation | ModuleEvaluation":
    """Compare a compressed model with the one it was made from.

    Both speak the same texts with the same noise, a recognizer transcribes them, and each model is
    timed in its system's own runtime in a process of its own. Two torch modules, which speak no
    texts, are called with batches, in turns in this process.

    Args:
        reference: The uncompressed model, or its spec; or a torch module.
        candidate: The compressed one; one that is in memory only is saved to a temporary place.
        suite: The texts to speak: a shipped name, or a TOML file.
        batches: Inputs of two modules: tensors, tuples of arguments or dictionaries.
        output: Folder for the report: `report.json`, `.md` and `.html`, which replace earlier ones;
            of modules `report.json` alone. A run into it that was interrupted goes on where it
            ended.
        options: Settings of the run, among them `progress`.

    Raises:
        EvaluationError: The models do not compare, or a model's process failed.
        TextError: A model cannot speak a text of the suite.
        ModelError: A model cannot be found or read.
        RecipeError: The suite is malformed.
        ArtifactError: `output` cannot be written.
        MissingExtraError: An optional package is needed; where the page alone needs it, the other
            two files of the report are written.
    """
    options = options or EvaluationOptions()
    if _are_modules(reference, candidate, batches):
        from tts_compress.evaluation.modules import evaluate_modules

        return evaluate_modules(reference, candidate, batches, output, options)
    watch = Stopwatch(options.progress)
    options = replace(options, progress=watch)
    watch.advance("open", 0, 3)
    chosen = suite if isinstance(suite, Suite) else read_suite(suite)
    chosen = chosen.with_seeds(options.seeds).with_recognizer(options.recognizer)
    # Small products in this process would keep every core waiting for the next one, and the
    # workers need them.
    with ExitStack() as stack, threadpool_limits(options.threads):
        before, after = (
            open_subject(
                model,
                None if isinstance(model, str | Path) else stack.enter_context(temporary_folder()),
                chosen.prompt,
                chosen.language,
                options.execution,
            )
            for model in (reference, candidate)
        )
        if before.model.sample_rate != after.model.sample_rate:
            raise EvaluationError(
                f"'{before.model.spec}' speaks at {before.model.sample_rate} Hz and "
                f"'{after.model.spec}' at {after.model.sample_rate} Hz; give a candidate that was "
                "made from the reference"
            )
        if not options.any_language:
            for subject in (before, after):
                check_language(subject.model, chosen)
        before, after = give_speakers((before, after), options.speaker)
        if options.blame:
            compressed_components(after.model)  # refused before anything is spoken
        hazards = _hazards(after.model)
        for hazard in hazards:
            warnings.warn(hazard, TTSCompressWarning, stacklevel=2)
        watch.advance("open", 2, 3)
        recognizer = find_recognizer(chosen.recognizer, chosen.language, options)
        watch.advance("open", 3, 3)
        folder = None if output is None else Path(output)
        store = stack.enter_context(open_store(folder, options))
        keep_in = folder if options.keep_wav else None
        models = (before, after)
        pairs = AudioPairs(chosen, store, keep_in)
        spoken = speak_pairs(models, pairs, options)
        sides = Pair(reference=before.identity(), candidate=after.identity())
        run, evaluation = judge(pairs, spoken, sides, recognizer, options, models)
        told = (*hazards, *_other_origin(evaluation, after.model), *_doubts(evaluation))
        blame = find_blame(run) if options.blame else None
        return completed(evaluation, told, watch, blame, folder)


def completed(
    evaluation: Evaluation,
    warnings: Sequence[str],
    watch: Stopwatch,
    blame: Blame | None,
    folder: Path | None,
) -> Evaluation:
    """Return an evaluation with what is known at its end: problems, times and blame.

    It is written into a folder, if there is one, before the work that it is made from is removed.
    """
    stages = {name: StageTime(seconds=s, steps=n) for name, (s, n) in watch.stages.items()}
    update = {"warnings": tuple(warnings), "stages": stages, "blame": blame}
    whole = evaluation.model_copy(update=update)
    if folder is not None:
        whole.write(folder)
    return whole


def _are_modules(reference: object, candidate: object, batches: object) -> bool:
    """Return True if a side is a torch module; models that speak have no batches."""
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    if torch and any(isinstance(side, torch.nn.Module) for side in (reference, candidate)):
        return True
    if batches is not None:
        raise EvaluationError("batches are inputs of torch modules; a model that speaks has texts")
    return False


def check_language(model: TTSModel, suite: Suite) -> None:
    """Refuse a suite of another language than a model states.

    Raises:
        EvaluationError: They differ by more than the region.
    """
    spoken = model.speaking.languages
    if not spoken or primary_language(suite.language) in map(primary_language, spoken):
        return
    codes = {primary_language(language) for language in spoken}
    fitting = [
        name
        for name in data_names("eval/suites")
        if primary_language(read_suite(name).language) in codes
    ]
    raise EvaluationError(
        f"'{model.spec}' speaks {', '.join(map(repr, spoken))}, and suite {suite.name!r} is in "
        f"{suite.language!r}; choose a suite of its language with --suite "
        f"({', '.join(fitting) or 'none is shipped, so a TOML file of yours'}), or insist with "
        "--any-language"
    )


def _other_origin(evaluation: Evaluation, candidate: TTSModel) -> tuple[str, ...]:
    """Return a warning of a reference that is not the file which was compressed."""
    source = None if candidate.manifest is None else candidate.manifest.source
    if source is None or source.sha256 in ("", evaluation.reference.sha256):
        return ()
    return (
        f"the compressed model was made from another file than the reference: '{source.spec}' with "
        f"SHA-256 {source.sha256[:12]}, not {evaluation.reference.sha256[:12]}; an original that "
        "was changed or damaged since makes every comparison with it wrong",
    )


def _doubts(evaluation: Evaluation) -> tuple[str, ...]:
    """Return what makes figures doubtful, and what falls back from the provider asked for."""
    sides: Any = evaluation.provider
    named = {} if sides is None else {"reference": sides.reference, "candidate": sides.candidate}
    told = (f"{name}: {side.fallback}" for name, side in named.items() if side.fallback)
    return (*told, *find_doubts(evaluation))


def _hazards(model: TTSModel) -> tuple[str, ...]:
    """Return the problems of a compressed model on this processor.

    A torch model is loaded for that, beside the processes that are timed, so only where its
    weights can overflow.
    """
    processor = describe_processor()
    if not (isinstance(model, OnnxGraph) or processor.adds_in_16_bits):
        return ()
    return find_hazards(count_integer_layers(model), processor)


def judge(
    pairs: AudioPairs,
    spoken: Generator[tuple[str, Path], None, None],
    sides: Pair[ModelIdentity],
    recognizer: Analyzer,
    options: EvaluationOptions,
    models: tuple[Subject, Subject] | None = None,
) -> tuple[Run, Evaluation]:
    """Return everything that two sides' audio shows; work that is in the store is not repeated.

    Args:
        pairs: Pairs of the audio.
        spoken: Makes them, and yields what is to be recognized.
        sides: What spoke it, for the report.
        recognizer: Transcribes it.
        options: Settings of the run.
        models: Reference and candidate; None for recordings, which have no cost and no tokens.
    """
    if models is not None and options.port is not None:
        raise EvaluationError(
            "`port` is only for recordings; for models, `blame` finds the part that did the damage"
        )
    # First, so that a wrong setting fails before anything is spoken.
    measures = find_analyzers(options)
    suite, store = pairs.suite, pairs.store
    total = count_audios(len(suite.utterances), len(suite.seeds))
    # Texts are recognized while others are spoken.
    with closing(spoken) as audios:
        hypotheses = analyze(store, recognizer, audios, options, total=total)
    measured = {}
    for measure, analyzer in measures.items():
        hashes = dict.fromkeys(pair.audio[r] for pair in pairs.pairs for r in measure.roles)
        files = [(key, pairs.files[key]) for key in hashes]
        measured[measure.name] = analyze(store, analyzer, files, options, total=len(files))
    run = Run(
        suite=suite,
        models=models,
        store=store,
        options=options,
        pairs=pairs.pairs,
        measured=measured,
        hypotheses={key: suite.normalize(text) for key, text in hypotheses.items()},
    )
    values: dict[str, Any] = {
        metric.name: None if metric.of_models and models is None else metric.compute(run)
        for metric in find_metrics()
    }
    evaluation = Evaluation(
        reference=sides.reference,
        candidate=sides.candidate,
        suite=SuiteIdentity(
            name=suite.name,
            sha256=suite.sha256,
            texts=len(suite.utterances),
            seeds=suite.seeds,
            recognizer=recognizer.description,
            recognizer_name=recognizer.spec,
            language=suite.language,
            normalizer=suite.normalizer,
        ),
        environment=run.environment() | {"date": datetime.now(UTC).date().isoformat()},
        utterances=tuple(
            _utterance(run, position, pair) for position, pair in enumerate(pairs.pairs)
        ),
        **values,
    )
    audio: dict[str, Any] = {"opus": encode_pairs(evaluation, pairs.pairs, pairs.files, options)}
    if options.listening_test:
        origin = (sides.reference.sha256, sides.candidate.sha256, suite.sha256)
        audio["listening"] = make_test(origin, pairs.pairs, pairs.files)
    return run, evaluation.model_copy(update=audio)


def _utterance(run: Run, position: int, pair: UtterancePair) -> Utterance:
    kept, symbols = pair.observed["duration"]
    speech = {}
    spaced = not counts_characters(run.suite.normalizer)
    for role in ("reference", "candidate"):
        hypothesis = run.hypotheses[pair.audio[role]]
        words = count_edits(pair.transcript, hypothesis, "word")
        characters = count_edits(pair.transcript, hypothesis, "character", spaced=spaced)
        speech[role] = Speech(
            hypothesis=hypothesis,
            word_errors=words.errors,
            character_errors=characters.errors,
            seconds=pair.seconds[role],
            audio=pair.kept.get(role),
        )
    return Utterance(
        index=pair.index,
        seed=pair.seed,
        text=pair.text,
        transcript=pair.transcript,
        words=words.tokens,
        characters=characters.tokens,
        **speech,
        log_mel_distance_db=pair.observed["signal"].spectra.distance_db,
        durations_kept=kept / symbols if symbols else None,
        speaker=pair.speaker,
        observed=run.values(position),
    )
