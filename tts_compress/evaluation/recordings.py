"""Evaluation of audio that any program wrote, matched by name to its texts."""

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field, ValidationError, model_validator
from threadpoolctl import threadpool_limits

from tts_compress.audio import Audio, audio_sha256, read_wav
from tts_compress.config import Config, describe_problems, parse_config
from tts_compress.errors import EvaluationError, ModelError, RecipeError, raising
from tts_compress.evaluation.blame import blame_of, column_values
from tts_compress.evaluation.metric import Pair
from tts_compress.evaluation.metrics.distortion import lacks_renderings
from tts_compress.evaluation.metrics.error_rates import find_doubts
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import AudioPairs, is_recognized
from tts_compress.evaluation.result import RECORDINGS, BlamedPart, Evaluation, ModelIdentity
from tts_compress.evaluation.run import completed, judge
from tts_compress.evaluation.store import find_recognizer, open_store
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.models.execution import PROCESSOR
from tts_compress.progress import Stopwatch
from tts_compress.reading import parse_json, read_text, read_toml

_SHOWN = 3
"""Names in a message."""

_PROMPTED = 4
"""Columns of seed-tts-eval's lists: name, text and file of the prompt, and the text to speak."""

Given: TypeAlias = Path | str | Mapping[str, Audio] | Sequence[Mapping[str, Audio]]
"""A folder of WAV files, or of a folder for each seed; or audio by name, for each seed."""


class Line(Config):
    """A text and the name of its recordings."""

    name: Annotated[str, AfterValidator(lambda name: name.removesuffix(".wav"))]
    text: str = Field(min_length=1)
    spoken: str | None = None
    """The words to be understood, where writing and speech differ."""


class _Lines(Config):
    utterances: tuple[Line, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _are_told_apart(self) -> "_Lines":
        names = Counter(line.name for line in self.utterances)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"the name {repeated[0]!r} occurs twice")
        return self


class _Side(NamedTuple):
    """Recordings of one program."""

    shown: str
    seeds: Sequence[Mapping[str, Callable[[], Audio]]]
    """Readers of recordings by name, for each seed."""

    folders: tuple[str, ...] = ()
    """Names of the seeds' folders; empty where there is one, and for audio in memory."""

    def check(self, names: Iterable[str]) -> None:
        """Refuse recordings that are not one for each text."""
        wanted = set(names)
        for recordings in self.seeds:
            for problem, odd in (
                ("has no recording of", wanted - set(recordings)),
                ("has recordings that no text names:", set(recordings) - wanted),
            ):
                if odd:
                    more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
                    listed = ", ".join(map(repr, sorted(odd)[:_SHOWN]))
                    raise EvaluationError(f"{self.shown} {problem} {listed}{more}")

    def read(self, seed: int, name: str) -> Audio:
        try:
            return self.seeds[seed][name]()
        except ModelError as error:
            raise EvaluationError(str(error)) from error


def _read_pairs(
    sides: tuple[_Side, _Side], names: Sequence[str], pairs: AudioPairs
) -> Generator[tuple[str, Path], None, None]:
    """Make pairs of recordings, text by text and seed by seed; yield what is to be recognized.

    The reference's next seed is its other rendering.
    """
    before, after = sides
    count = len(pairs.suite.seeds)
    for position in range(len(names) * count):
        index, seed = divmod(position, count)
        name = names[index]
        audios = {
            "reference": before.read(seed, name),
            "candidate": after.read(seed, name),
            "other_seed": before.read((seed + 1) % count, name),
        }
        rates = {audio.sample_rate for audio in audios.values()}
        if len(rates) > 1:
            raise EvaluationError(
                f"recordings of {name!r} are at {' and '.join(map(str, sorted(rates)))} Hz; "
                "give both sides at one rate"
            )
        if not np.any(audios["reference"].samples):
            raise EvaluationError(f"the reference's recording of {name!r} is silent")
        stored = {role: pairs.store.keep("recordings", audio) for role, audio in audios.items()}
        pairs.files |= stored.values()
        yield from pairs.add(position, audios, {role: key for role, (key, _) in stored.items()})
        yield from dict.fromkeys(
            audio for role, audio in stored.items() if is_recognized(role, position, pairs.suite)
        )


def evaluate_audio(
    reference: Given,
    candidate: Given,
    texts: Path | str | Mapping[str, str],
    *,
    suite: str | Path = "en-quick",
    output: Path | str | None = None,
    options: EvaluationOptions | None = None,
) -> Evaluation:
    """Compare recordings, whatever program wrote them; everything but size, speed and memory.

    Args:
        reference: WAV files whose names are those of the texts, of the original; with several
            seeds a folder of folders, each with all names. Or audio by name.
        candidate: Likewise of the compressed model, with as many seeds.
        texts: Text by name, or a file of them (`read_lines`).
        suite: The suite whose language, recognizer and normaliser are taken.
        output: Folder of the report.
        options: Settings of the run; those of models and times have no meaning. With `port`, the
            report also says what the other runtime did, and what the compression.

    Raises:
        EvaluationError: Names, rates or seeds do not match, or a recording cannot be read.
        RecipeError: The texts are malformed.
    """
    watch = Stopwatch((options or EvaluationOptions()).progress)
    options = replace(options or EvaluationOptions(), progress=watch)
    if options.blame:
        raise EvaluationError("recordings have no components to blame; give --port DIR instead")
    for name, stated in (
        ("seeds", options.seeds is not None),
        ("speaker", options.speaker is not None),
        ("device, provider or precision", options.execution != PROCESSOR),
    ):
        if stated:
            raise EvaluationError(f"recordings were spoken before; leave the {name} out")
    lines = read_lines(texts)
    names = [line.name for line in lines]
    sides = {"reference": _open("reference", reference), "candidate": _open("candidate", candidate)}
    if options.port is not None:
        sides["port"] = _open("port", options.port)
    for role, side in sides.items():
        side.check(names)
        if len(side.seeds) != len(sides["reference"].seeds):
            raise EvaluationError(
                f"{side.shown} has {len(side.seeds)} seeds and {sides['reference'].shown} "
                f"{len(sides['reference'].seeds)}; give the {role} as many"
            )
        if side.folders and (odd := set(sides["reference"].folders) - set(side.folders)):
            raise EvaluationError(
                f"{side.shown} has no folder {min(odd)!r}, which {sides['reference'].shown} has: "
                "name the folders of a seed alike"
            )
    chosen = _suite(texts, lines, read_suite(suite), len(sides["reference"].seeds))
    chosen = chosen.with_recognizer(options.recognizer)
    identities = {role: _identity(side, names) for role, side in sides.items()}
    with ExitStack() as stack, threadpool_limits(options.threads):
        recognizer = find_recognizer(chosen.recognizer, chosen.language, options)
        folder = None if output is None else Path(output)
        store = stack.enter_context(open_store(folder, options))

        def compare(before: str, after: str, keep_in: Path | None = None) -> Evaluation:
            pairs = AudioPairs(chosen, store, keep_in)
            audios = _read_pairs((sides[before], sides[after]), names, pairs)
            ends = Pair(reference=identities[before], candidate=identities[after])
            return judge(pairs, audios, ends, recognizer, options)[1]

        whole = compare("reference", "candidate", folder if options.keep_wav else None)
        blame = None
        if options.port is not None:
            parts = {"port": ("reference", "port"), "quantization": ("port", "candidate")}
            blame = blame_of(
                [
                    BlamedPart(component=name, role="", values=_values(compare(*ends)))
                    for name, ends in parts.items()
                ],
                _values(whole),
                len(whole.utterances),
                chosen.seeds[0],
            )
        doubts = find_doubts(whole)
        document = whole.model_dump(include={"suite", "reference", "distortion"})
        if (why := lacks_renderings(document)) is not None:
            doubts.append(f"distortion: {why}")
        return completed(whole, doubts, watch, blame, folder)


def read_lines(texts: Path | str | Mapping[str, str]) -> tuple[Line, ...]:
    """Return texts with the names of their recordings.

    A file is TOML (`utterances = [{ name = …, text = …, spoken = … }]`), JSON lines of the same
    objects, or has columns between tabs or `|`: name and text, or name, text and spoken words
    (LJSpeech), or name, prompt's text, prompt's file and text (seed-tts-eval). A name may be that
    of a WAV file.

    Raises:
        RecipeError: The file cannot be read, has no texts, or a name twice.
    """
    if isinstance(texts, Mapping):
        shown, rows = "texts", [{"name": name, "text": text} for name, text in texts.items()]
    else:
        shown = f"'{texts}'"
        with raising(RecipeError, f"cannot read the texts {shown}"):
            rows = _rows(Path(texts))
    try:
        return _Lines.model_validate_json(json.dumps({"utterances": rows})).utterances
    except ValidationError as error:
        raise RecipeError(f"{shown}: {describe_problems(error)}") from error


def _rows(path: Path) -> Any:
    if path.suffix == ".toml":
        return read_toml(path).get("utterances")
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if path.suffix in {".jsonl", ".json"}:
        return [parse_json(line) for line in lines]
    return [_columns(line) for line in lines]


def _columns(line: str) -> dict[str, str]:
    cells = [cell.strip() for cell in line.split("\t" if "\t" in line else "|")]
    if len(cells) < 2:
        raise ValueError(f"no tab and no | between name and text: {line[:80]!r}")
    if len(cells) >= _PROMPTED:
        if not cells[2].lower().endswith(".wav"):
            raise ValueError(
                f"{len(cells)} cells, and the third names no .wav file: {line[:80]!r}; accepted: "
                "name, text and what is heard, or name, the prompt's text, its recording, text"
            )
        return {"name": cells[0], "text": cells[_PROMPTED - 1]}
    return dict(zip(("name", "text", "spoken"), cells, strict=False))


def _open(role: str, recordings: Given) -> _Side:
    """Return the recordings of a side."""
    if isinstance(recordings, Mapping | list | tuple):
        several = [recordings] if isinstance(recordings, Mapping) else list(recordings)
        readers = [
            {name: partial(_checked, role, name, audio) for name, audio in seed.items()}
            for seed in several
        ]
        return _Side(f"the {role}", readers)
    root = Path(str(recordings))
    if not root.is_dir():
        raise EvaluationError(f"the {role} '{root}' is no folder; give one of WAV files")
    seeds = {"": _readers(root)}
    if not seeds[""]:
        seeds = {folder.name: _readers(folder) for folder in sorted(root.iterdir())}
    seeds = {name: readers for name, readers in seeds.items() if readers}
    if not seeds:
        raise EvaluationError(f"the {role} '{root}' holds no WAV files")
    return _Side(f"'{root}'", [*seeds.values()], tuple(filter(None, seeds)))


def _readers(folder: Path) -> dict[str, Callable[[], Audio]]:
    """Return readers of the WAV files in a folder; none of what is no folder, or closed to us."""
    wavs = (path for path in folder.glob("*") if path.suffix.lower() == ".wav")
    return {path.stem: partial(read_wav, path) for path in wavs}


def _checked(role: str, name: str, audio: Audio) -> Audio:
    """Return audio that a caller gives, or refuse it."""
    samples = np.asarray(getattr(audio, "samples", None))
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise EvaluationError(
            f"the {role}'s recording of {name!r} has samples of shape {list(samples.shape)} and "
            f"type {samples.dtype}; give `Audio` of one channel, float32 in [-1, 1]"
        )
    return replace(audio, samples=samples)


def _suite(
    texts: Path | str | Mapping[str, str], lines: Sequence[Line], like: Suite, seeds: int
) -> Suite:
    """Return the suite of texts, with the language, recognizer and normaliser of another."""
    stem = "texts" if isinstance(texts, Mapping) else Path(texts).stem
    document = like.model_dump(include={"version", "language", "recognizer", "normalizer"}) | {
        "name": re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "texts",
        "seeds": list(range(seeds)),
        "utterances": [line.model_dump(exclude={"name"}) for line in lines],
        "card": {"summary": stem, "source": str(stem), "licence": "", "composition": ""},
    }
    return parse_config(json.dumps(document), Suite, f"the texts of {stem!r}")


def _identity(side: _Side, names: Sequence[str]) -> ModelIdentity:
    digest = sha256()
    for seed in range(len(side.seeds)):
        for name in names:
            digest.update(audio_sha256(side.read(seed, name)).encode())
    return ModelIdentity(
        spec=side.shown.strip("'"), family=RECORDINGS, scheme="audio", sha256=digest.hexdigest()
    )


def _values(evaluation: Evaluation) -> dict[str, float | None]:
    return column_values({metric.name: value for metric, value in evaluation.measured()})
