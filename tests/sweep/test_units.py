"""Units: keys, dependencies, shares."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tts_compress.sweep.plan import Identity, Opened, OpenPlan, Unit, read_plan, share_of, units_of


def _voice(name: str = "demo", fingerprint: str = "f") -> Opened:
    return Opened(spec=name, name=name, family="piper", fingerprint=fingerprint)


def _units(plan: OpenPlan, identity: Identity, voices: int = 1) -> list[Unit]:
    found = {
        unit.key: unit
        for number in range(voices)
        for scheme in plan.schemes
        for unit in units_of(plan, _voice(f"v{number}", f"f{number}"), scheme, identity)
    }
    return list(found.values())


def test_schemes_share_the_reference(write_plan: Callable[..., Path], identity: Identity) -> None:
    plan = read_plan(write_plan(schemes=["int8", "fp16"], shards=3))
    units = _units(plan, identity)
    counts = {kind: sum(unit.kind == kind for unit in units) for kind in {u.kind for u in units}}
    assert counts == {"compress": 2, "reference": 3, "candidate": 6, "time": 2, "report": 2}
    known: set[str] = set()
    for unit in units:
        assert known >= {*unit.needs}, "what a unit needs comes before it"
        known.add(unit.key)


def test_a_key_changes_with_what_decides_and_with_nothing_else(
    write_plan: Callable[..., Path], identity: Identity
) -> None:
    def keys(plan: OpenPlan, own: Identity = identity, fingerprint: str = "f") -> dict[str, str]:
        units = units_of(plan, _voice(fingerprint=fingerprint), plan.schemes[0], own)
        return {unit.title: unit.key for unit in units}

    first = keys(read_plan(write_plan()))
    same = keys(read_plan(write_plan("other", gates=["strict"], unit_hours=2.0)))
    assert same == first, "neither the place nor the gates decide"
    voice = keys(read_plan(write_plan()), fingerprint="g")
    versions = keys(read_plan(write_plan()), identity.model_copy(update={"packages": {}}))
    for changed in (voice, versions):
        assert not {*changed.values()} & {*first.values()}
    scheme = keys(read_plan(write_plan(schemes=["fp16"])))
    assert scheme["reference demo, shard 0"] == first["reference demo, shard 0"]
    assert not {key for title, key in scheme.items() if "reference" not in title} & {
        *first.values()
    }
    seeds = keys(read_plan(write_plan(seeds=[7])))
    assert seeds["compress demo, int8"] == first["compress demo, int8"]
    assert seeds["time demo, int8"] == first["time demo, int8"]
    assert seeds["candidate demo, int8, shard 1"] != first["candidate demo, int8, shard 1"]
    ears = keys(read_plan(write_plan()), identity.model_copy(update={"recognizer": "other"}))
    assert ears["compress demo, int8"] == first["compress demo, int8"]
    assert ears["reference demo, shard 0"] != first["reference demo, shard 0"]
    timing = keys(read_plan(write_plan(more="[settings]\ntiming_runs = 2")))
    changed_titles = {title for title, key in timing.items() if key != first[title]}
    assert changed_titles == {"time demo, int8", "report demo, int8"}


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_shares_hold_whole_chains(
    write_plan: Callable[..., Path], identity: Identity, count: int
) -> None:
    plan = read_plan(write_plan(schemes=["int8", "fp16", "bf16"], shards=3))
    units = _units(plan, identity, voices=2)
    shares = [share_of(units, number, count) for number in range(1, count + 1)]
    together = [unit.key for share in shares for unit in share]
    assert sorted(together) == sorted(unit.key for unit in units if unit.kind != "report")
    for share in shares:
        mine = {unit.key for unit in share}
        assert all({*unit.needs} <= mine for unit in share)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 5, "the longest chain is a model, three shards, its time"
