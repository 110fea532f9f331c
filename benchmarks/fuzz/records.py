"""Records that measuring keeps and reads again: suites of few texts, results of sweeps, studies."""

import io
import json
import random
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from benchmarks.fuzz.compare import DisagreementError
from benchmarks.fuzz.files import REPORT, made_artifact
from benchmarks.fuzz.mutate import Kind, mutate_bytes, mutate_file
from tts_compress.artifact import MANIFEST_NAME, Manifest
from tts_compress.evaluation import read_report
from tts_compress.evaluation.intervals import FEWEST_TEXTS
from tts_compress.evaluation.metrics.error_rates import METRICS
from tts_compress.evaluation.suite import read_suite
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import find_groups, find_recipe
from tts_compress.report.card import weights_of
from tts_compress.search.choices import Space, find_formats
from tts_compress.search.measure import MeasuredDamage
from tts_compress.search.options import SearchOptions
from tts_compress.search.search import explore
from tts_compress.sweep.plan import Identity, Opened, read_plan, units_of
from tts_compress.sweep.report import merge_reports, table_of
from tts_compress.sweep.results import open_results

_TEXTS = ("Open the door.", "A cat sat down", "We saw birds", "Three red apples", "He ran home")
_FORMATS = ("float16", "int8")
_MODULES = ("dec.ups.0", "dec.ups.1", "flow.flows.6.pre")

_SUITE = """version = 1
name = "fuzzed"
language = "en-us"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = {seeds}
utterances = {utterances}
[card]
summary = "s"
source = "s"
licence = "s"
composition = "s"
"""


def _suite(folder: Path, dice: random.Random) -> Iterator[None]:
    """Compare made-up word errors over a suite; few texts show no interval."""
    rows = []
    for _ in range(dice.choice((1, 2, 4, 11, 12, 24))):
        text = dice.choice(_TEXTS) if dice.random() < 0.3 else f"Again {'na' * dice.randrange(40)}"
        for change in (str.upper, lambda text: f"  {text} ", lambda text: f"{text}!"):
            text = change(text) if dice.random() < 0.2 else text
        rows.append(f"{{ text = {json.dumps(text)} }}")
    seeds = dice.choice(("[0]", "[0, 1]"))
    content = _SUITE.format(seeds=seeds, utterances=f"[{', '.join(rows)}]")
    (folder / "suite.toml").write_text(content, "utf-8")
    yield
    suite = read_suite(folder / "suite.toml")
    pairs: list[Any] = []
    heard: dict[str, str] = {}
    for utterance in suite.utterances:
        for _ in suite.seeds:
            words = suite.transcript(utterance)
            audio = {role: f"{len(pairs)}-{role}" for role in ("reference", "candidate")}
            for name in audio.values():
                heard[name] = words if dice.random() < 0.7 else words.partition(" ")[2]
            pairs.append(SimpleNamespace(transcript=words, audio=audio))
    run = SimpleNamespace(suite=suite, pairs=pairs, hypotheses=heard)
    distinct = len({" ".join(pair.transcript.split()) for pair in pairs})
    for metric in METRICS[:2]:
        rate = metric.compute(run)
        if (rate.interval is None) != (distinct < FEWEST_TEXTS):
            raise DisagreementError(f"{distinct} texts have the interval {rate.interval}")
        if rate.interval is not None and not rate.interval[0] <= rate.delta <= rate.interval[1]:
            raise DisagreementError(f"{rate.delta} lies outside of {rate.interval}")


@cache
def _sweep() -> tuple[Any, tuple[Any, ...], dict[str, dict[str, bytes]]]:
    with TemporaryDirectory() as place:
        path = Path(place) / "plan.toml"
        path.write_text(
            'version = 1\nvoices = ["demo"]\nschemes = ["int8", "fp16"]\nsuite = "en-quick"\n'
            'shards = 1\noutput = "out"\n',
            "utf-8",
        )
        plan = read_plan(path)
    identity = Identity(code="1", packages={}, recognizer="r", measures={})
    voice = Opened(spec="demo", name="demo", family="piper", fingerprint="f")
    text = (made_artifact() / MANIFEST_NAME).read_text("utf-8")
    manifest, units, files = Manifest.from_json(text), [], {}
    for scheme in plan.schemes:
        chain = units_of(plan, voice, scheme, identity)
        units += chain
        report = json.loads(REPORT.read_bytes())
        report["candidate"] |= {"spec": f"demo/{scheme.name}", "scheme": scheme.scheme}
        report["candidate"]["sha256"] = weights_of(manifest)
        report["reference"]["sha256"] = manifest.source.sha256
        report["suite"]["sha256"] = plan.suite.sha256
        files[chain[0].key] = {f"model/{MANIFEST_NAME}": text.encode()}
        files[chain[-1].key] = {"report.json": json.dumps(report).encode(), "report.html": b""}
    return plan, tuple(units), files


def _results(folder: Path, dice: random.Random) -> Iterator[None]:
    """Merge results: what a row says is of its own voice, scheme and suite."""
    plan, units, files = _sweep()
    changed = dice.choice(sorted(files))
    (folder / "units").mkdir()
    for key, contents in files.items():
        path, members, way = folder / "units" / f"{key}.zip", dict(contents), dice.randrange(8)
        if key == changed and way == 0:  # another unit's
            members = files[dice.choice(sorted(files))]
        elif key == changed and way < 4:
            name = dice.choice(sorted(members))
            if name.endswith(".json"):
                members[name] = mutate_file(members[name], dice)
        elif key == changed and way == 4:
            del members[dice.choice(sorted(members))]
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        content = file.getvalue()
        if key == changed and way == 7:
            path.symlink_to(dice.choice(("/dev/zero", "nowhere", folder)))
            continue
        path.write_bytes(mutate_bytes(content, dice) if key == changed and way > 4 else content)
    for name in dice.sample(("log/.DS_Store", f"log/{changed}/x.json", "log/x/y/z", "x"), 2):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(mutate_bytes(b'{"failed": "why"}', dice))
    yield
    merged = merge_reports(plan, open_results(str(folder)), units, [], Silent())
    reports = {unit.chain: files[unit.key] for unit in units if unit.kind == "report"}
    told = {(failure.voice, failure.scheme) for failure in merged.failures}
    if len(merged.entries) + len(told) < len(reports) and not merged.left:
        raise DisagreementError(f"{len(merged.entries)} rows, and no word of the others")
    for entry in merged.entries:
        stated = read_report((folder / entry.report).parent).model_dump(mode="json")
        right = json.loads(reports[entry.voice, entry.scheme]["report.json"])
        for side, key in (("candidate", "sha256"), ("reference", "sha256"), ("suite", "sha256")):
            if stated[side][key] != right[side][key]:
                raise DisagreementError(f"the row of {entry.scheme} is of another {side}")
    table_of(merged)
    merged.to_json()


@cache
def _space() -> Any:
    groups, forms = find_groups(_MODULES, ()), find_formats("piper", _FORMATS)
    formats = {group.name: forms for group in groups}
    return Space(base=find_recipe("piper", "int8"), groups=groups, formats=formats)


def _explored(folder: Path, trials: int) -> Any:
    def measure(choice: Any) -> Any:
        harm = sum(value != "float32" for value in choice.values())
        share = 0.1 * harm
        damage = {"same_noise": share, "distortion": share, "floor_db": 0.0, "duration_frames": 0.0}
        return float(harm), MeasuredDamage(**damage)

    options = SearchOptions(trials=trials, damage=1.0, progress=Silent())
    return explore(_space(), measure, [_space().baseline()], folder, "size-1", options)


@cache
def _study() -> bytes:
    with TemporaryDirectory() as folder:
        _explored(Path(folder), 3)
        return (Path(folder) / "study.log").read_bytes()


def _resumed(folder: Path, dice: random.Random) -> Iterator[None]:
    """Go on with a study: every point is a choice of this search."""
    rows = _study().splitlines()
    if dice.random() < 0.7:
        index = dice.randrange(len(rows))
        rows[index] = mutate_file(rows[index], dice)
        content = b"\n".join(rows) + b"\n"
    else:
        content = mutate_bytes(_study(), dice)
    (folder / "study.log").write_bytes(content)
    if dice.random() < 0.2:
        (folder / "study.log.lock").symlink_to(folder / "study.log")
    yield
    space, points = _space(), _explored(folder, 5)
    for point in points:
        choices = {group.name: {*space.names(group.name)} for group in space.groups}
        if point.choice.keys() != choices.keys() or any(
            value not in choices[name] for name, value in point.choice.items()
        ):
            raise DisagreementError(f"a point is of another search: {point.choice}")


KINDS = {
    "suite": Kind(3, _suite),
    "unit": Kind(4, _results),
    "storage": Kind(3, _resumed),
}
