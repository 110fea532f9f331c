"""The proof of distortion: it says so where a measure finds nothing, or what is not there."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.power.simulate import ALARMS
from benchmarks.sound.__main__ import main
from benchmarks.sound.analysis import DISTORTION, SHIPPED, Plan, Rows, Values, analyse, read_values
from benchmarks.sound.measure import measure_voice
from benchmarks.sound.plant import NAMES, plant
from tts_compress.audio import Audio

_SHIPPED = Path(__file__).parents[1] / SHIPPED
_SMALL = Plan(texts=(24,), alarms=1000, found=100)


def _rows(mean: float, spread: float, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    return tuple(map(tuple, random.normal(mean, spread, (24, 3)).tolist()))


def _values(**damage: float) -> Values:
    """Return one measure by which candidates differ by so many standard deviations of a text."""
    takes = np.random.default_rng(9).normal(1, 0.1, (24, 9, 9))
    return Values(
        suite="s",
        seeds=(0, 1, 2),
        machine="m",
        units={DISTORTION: (1.0,) * 24},
        takes=tuple(tuple(map(tuple, (one + one.T).tolist())) for one in takes),
        reference={"score": _rows(3, 1, 0)},
        other_seeds={"score": _rows(3, 1, 1)},
        candidates={
            name: {DISTORTION: _rows(mean, 3**0.5, place), "score": _rows(3 - mean, 1, place)}
            for place, (name, mean) in enumerate(damage.items(), 2)
        },
    )


def test_damage_is_found_and_nothing_is_not() -> None:
    found = analyse(_values(none=0.0, large=3.0), DISTORTION, _SMALL)
    assert found.findings["large"].power[24] == 1.0
    assert found.findings["large"].t > 5.0
    assert found.findings["none"].power[24] < 0.6
    assert abs(found.findings["none"].t) < 3.0
    assert all(0.02 <= kind[24] <= 0.09 for kind in found.alarms.values())


def test_a_loss_is_found_on_its_side() -> None:
    found = analyse(_values(large=3.0), "score", _SMALL).findings["large"]
    assert found.delta == pytest.approx(-3.0, abs=0.5)
    assert found.interval[1] < 0.0
    assert found.power[24] == 1.0


def test_renderings_that_drift_are_no_distortion() -> None:
    """Distances that differ among seeds alone are dealt to both sides."""
    values = _values(none=0.0)
    far = np.array(values.takes)
    far[:, :3] += 5.0
    far[:, :, :3] += 5.0
    moved = values.model_copy(update={"takes": tuple(tuple(map(tuple, o)) for o in far.tolist())})
    share = analyse(moved, DISTORTION, _SMALL).alarms["other seeds"][24]
    assert 0.02 <= share <= 0.09


def test_shipped_values_show_five_bits_with_few_false_alarms() -> None:
    values = read_values(_SHIPPED)
    found = analyse(values, DISTORTION, Plan(texts=(24,), alarms=2000, found=100))
    assert found.findings["5-bit decoder weights"].power[24] >= 0.9
    assert found.findings["5-bit decoder weights"].interval[0] > 0.5  # the limit of the gates
    assert found.findings["int8"].interval[1] < 0.5
    low, high = found.findings["fp16"].interval
    assert low <= 0.0 <= high
    assert all(ALARMS[0] <= kind[24] <= ALARMS[1] for kind in found.alarms.values())
    assert set(NAMES) == set(values.candidates)


@pytest.mark.slow
def test_the_command_writes_the_tables(tmp_path: Path) -> None:
    report = tmp_path / "sound.md"
    options = ["--texts", "24", "--comparisons", "400", "--report", str(report)]
    assert main([*options, "--values", str(_SHIPPED)]) in {0, 1}
    text = report.read_text(encoding="utf-8")
    assert "| 5-bit decoder weights | +0.738 |" in text
    assert "python -m benchmarks.sound" in text


@pytest.mark.parametrize("content", ["{}", "no JSON"])
def test_values_that_are_none_are_one_line(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "values.json"
    path.write_text(content, encoding="utf-8")
    for place in (path, tmp_path / "missing"):
        assert main(["--values", str(place)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_fewer_bits_change_the_weights_they_name_more() -> None:
    pytest.importorskip("piper")
    original, six, four = (
        {item.name: item.raw_data for item in plant(name).graph().graph.initializer}  # type: ignore[attr-defined]
        for name in ("8-bit decoder weights", "6-bit decoder weights", "4-bit decoder weights")
    )
    changed = {name for name in original if original[name] != six[name]}
    assert changed
    assert all(".dec." in name for name in changed)
    assert all(six[name] != four[name] for name in changed)


def test_noise_lowers_what_measures_a_voice_without_a_reference() -> None:
    time = np.arange(16_000) / 16_000
    orders = np.arange(1, 50)[:, None]
    tones = (np.sin(2 * np.pi * 120 * orders * time) / orders).sum(axis=0)
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000)
    clean, noisy = (
        measure_voice(Audio(samples=wave.astype(np.float32), sample_rate=16_000))
        for wave in (0.1 * tones, 0.1 * (tones + noise))
    )
    for name in ("cepstral peak prominence", "harmonics to noise", "spectral contrast"):
        assert noisy[name] < clean[name] - 1.0
