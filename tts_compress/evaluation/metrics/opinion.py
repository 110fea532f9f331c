"""Opinion scores that networks predict: those of a wheel, and one that the user has.

Of Microsoft's `speechmos` wheel: DNSMOS P.835 and P.808 (Reddy et al., ICASSP 2021 and 2022) and
PLCMOS v2 (Diener et al., INTERSPEECH 2023) were trained on noisy and interrupted calls, not on
synthetic voices: a change is evidence, the value by itself is not. The wheel's ONNX files are
opened here; its code, which needs packages that it does not declare, is never imported. Names are
those of VERSA.

A network of the user's, such as UTMOS exported to ONNX, has one input, float32 samples of shape
`[1, T]` or `[T]` in [-1, 1], and one output of a single number, of which more is better. Its rate
is in the file's metadata (`sample_rate`, Hz), or given.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.artifact import sha256_of
from tts_compress.audio import Audio, Samples, finite_samples
from tts_compress.errors import EvaluationError, ModelError, reason
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Measure, Metric, Paired, Show, compare_pairs
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import Run
from tts_compress.numerics.spectra import slaney_spectrum

_RATE = 16_000
_SEGMENT = 144_160
"""Samples of the 9.01 s that DNSMOS takes at once."""

_RATERS = 15
"""Raters of PLCMOS that are drawn and averaged, as upstream does; ours have a seed."""

# Raw output to score, highest power first; from upstream's dnsmos.py.
_SIGNAL = (-0.08397278, 1.22083953, 0.0052439)
_BACKGROUND = (-0.13166888, 1.60915514, -0.39604546)
_OVERALL = (-0.06766283, 1.11546468, 0.04602535)

_RATES = (8_000, 96_000)

_ACCEPTED = (
    "one input of float32 samples, [1, T] or [T], and one output of a single number are accepted"
)


def score_samples(networks: Sequence[Any], samples: Samples) -> dict[str, float]:
    """Return every score by its name in the report.

    Args:
        networks: Those of `open_networks`.
        samples: Not empty, at 16 kHz, in [-1, 1].
    """
    overall, p808, plc = networks
    padded = samples
    while len(padded) < _SEGMENT:
        padded = np.concatenate((padded, padded))
    scores = []
    for second in range(max(1, len(padded) // _RATE - 9)):
        segment = padded[second * _RATE : int((second + 9.01) * _RATE)]
        if len(segment) < _SEGMENT:  # upstream leaves out what its rounding cuts short
            continue
        raw = overall.run(None, {"input_1": segment[None]})[0][0]
        (mos,) = p808.run(None, {"input_1": log_mel(segment[:-160])[None]})[0][0]
        scores.append([*map(np.polyval, (_SIGNAL, _BACKGROUND, _OVERALL), raw), mos])
    raters = np.random.RandomState(0).normal(size=(_RATERS, 1, 64)).astype(np.float32)
    degraded = {"degraded_audio": log_power(samples)[None, None]}
    plcmos = [plc.run(None, degraded | {"rater_embed": rater})[0] for rater in raters]
    names = ("dnsmos_signal", "dnsmos_background", "dnsmos_overall", "dnsmos_p808")
    return {
        **dict(zip(names, np.mean(scores, axis=0).tolist(), strict=True)),
        "plcmos": float(np.mean([np.ravel(output)[0] for output in plcmos])),
    }


def _installed(_: object) -> dict[str, str] | None:
    """Return the version; None where the wheel, or SciPy to resample for it, is not installed."""
    try:
        return {"speechmos": version("speechmos"), "scipy": version("scipy")}
    except PackageNotFoundError:
        return None


def open_networks() -> list[Any]:
    """Return the networks of the installed wheel: DNSMOS, DNSMOS P.808 and PLCMOS."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it doubles the memory of activations, and saves no time
    folder = Path(str(distribution("speechmos").locate_file("speechmos")))
    names = ("dnsmos_models/sig_bak_ovr", "dnsmos_models/model_v8", "plcmos_models/plcmos_v2")
    return [
        onnxruntime.InferenceSession(
            folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
        )
        for name in names
    ]


def log_mel(samples: Samples) -> npt.NDArray[np.float32]:
    """Return the log-mel spectrum of DNSMOS P.808, shape `[frames, 120]`."""
    mel = slaney_spectrum(samples, _RATE, window=321, hop=160, bands=120)
    level = 10.0 * np.log10(np.maximum(mel, 1e-10))
    level -= 10.0 * np.log10(max(float(mel.max()), 1e-10))
    return np.asarray((np.maximum(level, level.max() - 80.0) + 40.0) / 40.0, np.float32)


def log_power(samples: Samples) -> npt.NDArray[np.float32]:
    """Return the log power spectrum of PLCMOS, shape `[frames, 257]`: windows of 512, half over."""
    window, hop = 512, 256
    count = -(-(len(samples) + hop) // hop)
    padded = np.zeros((count - 1) * hop + window, np.float32)
    padded[hop : hop + len(samples)] = samples
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    power = np.square(np.abs(np.fft.rfft(frames * np.hamming(window + 1)[:-1])))
    lowest = power[power > 0].min(initial=np.inf)
    silence = np.log(lowest) - 12.0 * np.log(10.0) if np.isfinite(lowest) else -8.0 * np.log(10.0)
    logarithms = np.full_like(power, silence)
    np.log(power, out=logarithms, where=power > 0)
    return np.asarray(logarithms / 20.0, np.float32)


def _score(networks: Sequence[Any], audio: Audio) -> dict[str, float]:
    samples = np.clip(finite_samples(audio, _RATE), -1.0, 1.0)
    # PLCMOS takes nothing shorter than some windows.
    return score_samples(networks, np.pad(samples, (0, max(0, _RATE - len(samples)))))


def _open(_: object) -> Callable[[Audio], dict[str, float]]:
    return partial(_score, open_networks())


_MEASURE = Measure(name="opinion", settings=_installed, open=_open)


def _compute(name: str, run: Run) -> Paired | None:
    measurements = run.measurements(_MEASURE)
    if measurements is None:
        return None
    before, after = ([opinions[role][name] for opinions in measurements] for role in _MEASURE.roles)
    return compare_pairs(run, before, after)


def _metric(name: str, label: str) -> Metric:
    return Show(label).metric(
        name,
        partial(_compute, name),
        measure=_MEASURE,
        terms={
            "DNSMOS, PLCMOS": "opinion scores from 1 to 5 that networks predict; higher is better. "
            "They were trained on noisy and interrupted calls: a change counts, the value does not."
        },
    )


class Mos(Paired):
    """Mean score of a network over all utterances, and which network that is."""

    network: str
    """Name of its file."""

    sha256: str
    sample_rate: int
    """Rate of its input, Hz."""


def _users_settings(options: EvaluationOptions) -> dict[str, str] | None:
    """Return file, hash and rate of the user's network, which is not run here: it may not end."""
    if options.mos is None:
        return None
    from tts_compress.models.graph_file import read_structure, weight_files

    name, _, stated = options.mos.rpartition("@")
    path = Path(name if name and stated.isdecimal() else options.mos).expanduser()
    by_user = stated if name and stated.isdecimal() else None
    if not path.is_file():
        raise EvaluationError(f"there is no file '{path}'; give --mos FILE.onnx or FILE.onnx@HZ")
    try:
        if weight_files(path):
            raise EvaluationError(f"'{path}' keeps weights in other files; save it as one file")
        stated_there = {entry.key: entry.value for entry in read_structure(path).metadata_props}
    except ModelError as error:
        raise EvaluationError(f"cannot open the network: {reason(error)}") from error
    in_file = stated_there.get("sample_rate")
    rates = {rate for rate in (by_user, in_file) if rate}
    shown = " and ".join(sorted(rates)) or "nothing"
    if not (re.fullmatch("[0-9]{4,5}", shown) and _RATES[0] <= int(shown) <= _RATES[1]):
        raise EvaluationError(
            f"the rate of '{path}' is stated as {formatting.one_line(shown, 60)}; give one from "
            "8000 to 96000 Hz, as metadata `sample_rate` of the file or as --mos FILE.onnx@HZ"
        )
    return {"path": str(path.resolve()), "sha256": sha256_of(path), "sample_rate": shown}


def _open_network(path: Path) -> Callable[[Samples], float | None]:
    """Return a network."""
    from tts_compress.onnx.session import open_session

    try:
        session = open_session(path, str(path), threads=1)
    except (OSError, ModelError) as error:
        raise EvaluationError(f"cannot open the network: {reason(error)}") from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if not (len(inputs) == len(outputs) == 1 and _takes_samples(inputs[0])):
        shown = ", ".join(f"{port.name} {port.type} {port.shape}" for port in (*inputs, *outputs))
        raise EvaluationError(f"'{path}' has {formatting.one_line(shown, 200)}; {_ACCEPTED}")
    is_flat = len(inputs[0].shape) == 1

    def score(samples: Samples) -> float | None:
        """Return None where the network fails, or its output is not one finite number."""
        feed = samples if is_flat else samples[None]
        try:
            (output,) = session.run(None, {inputs[0].name: feed})
        # onnxruntime's exceptions share no base class but this one.
        except Exception:
            return None
        value = np.ravel(output)
        return float(value[0]) if value.size == 1 and np.isfinite(value[0]) else None

    return score


def _takes_samples(value: Any) -> bool:
    """Return True for float32 of shape [T] or [1, T]: of any length, and of any number or one."""
    *batch, length = value.shape or [1]
    is_single = batch in ([], [1]) or (len(batch) == 1 and isinstance(batch[0], str | None))
    return value.type == "tensor(float)" and is_single and isinstance(length, str | None)


def _open_users(settings: Mapping[str, str]) -> Callable[[Audio], float | None]:
    path, rate = settings["path"], int(settings["sample_rate"])
    score = _open_network(Path(path))
    if score(np.zeros(rate, np.float32)) is None:
        raise EvaluationError(f"'{path}' gives a second of silence no score; {_ACCEPTED}")

    def measure(audio: Audio) -> float | None:
        samples = np.clip(finite_samples(audio, rate), -1.0, 1.0)
        # Convolutions take nothing shorter than some windows.
        return score(np.pad(samples, (0, max(0, rate - len(samples)))))

    return measure


_USERS = Measure(name="mos", settings=_users_settings, open=_open_users, is_tried=True)


def _compute_mos(run: Run) -> Mos | None:
    measurements, settings = run.measurements(_USERS), _users_settings(run.options)
    if measurements is None or settings is None:
        return None
    before, after = (
        np.array([opinions[role] for opinions in measurements], float) for role in _USERS.roles
    )
    scores = compare_pairs(run, before, after)
    if scores is None:
        raise EvaluationError(f"'{settings['path']}' scores no audio; {_ACCEPTED}")
    return Mos(
        **scores.model_dump(),
        network=Path(settings["path"]).name,
        sha256=settings["sha256"],
        sample_rate=int(settings["sample_rate"]),
    )


METRICS = (
    Metric(
        name="mos",
        group="sound",
        result=Mos,
        measure=_USERS,
        compute=_compute_mos,
        optional=True,
        rows=lambda mos, _: Show(f"Opinion by {formatting.one_line(mos.network, 40)}").rows(mos),
        terms={"Opinion": "score by the network that was given with `--mos`; more is better."},
    ),
    _metric("dnsmos_overall", "DNSMOS, overall"),
    _metric("dnsmos_signal", "DNSMOS, signal"),
    _metric("dnsmos_background", "DNSMOS, background"),
    _metric("dnsmos_p808", "DNSMOS P.808"),
    _metric("plcmos", "PLCMOS"),
)
