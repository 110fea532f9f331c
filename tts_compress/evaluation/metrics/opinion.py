"""Opinion scores that networks predict, for those who have Microsoft's `speechmos` wheel.

DNSMOS P.835 and P.808 (Reddy et al., ICASSP 2021 and 2022) and PLCMOS v2 (Diener et al.,
INTERSPEECH 2023) were trained on noisy and interrupted calls, not on synthetic voices: a change is
evidence, the value by itself is not. The wheel's ONNX files are opened here; its code, which needs
packages that it does not declare, is never imported. Names are those of VERSA.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio, Samples
from tts_compress.evaluation.metric import Measure, Metric
from tts_compress.evaluation.paired import Paired, Show, compare_pairs
from tts_compress.evaluation.pairs import Run
from tts_compress.numerics.mel import slaney_spectrum

_RATE = 16_000
_SEGMENT = 144_160
"""Samples of the 9.01 s that DNSMOS takes at once."""

_RATERS = 15
"""Raters of PLCMOS that are drawn and averaged, as upstream does; ours have a seed."""

# Raw output to score, highest power first; from upstream's dnsmos.py.
_SIGNAL = (-0.08397278, 1.22083953, 0.0052439)
_BACKGROUND = (-0.13166888, 1.60915514, -0.39604546)
_OVERALL = (-0.06766283, 1.11546468, 0.04602535)


@dataclass(frozen=True)
class OpinionNetworks:
    """The networks of the wheel."""

    overall: Any
    p808: Any
    plc: Any

    def scores(self, samples: Samples) -> dict[str, float]:
        """Return every score by its name in the report.

        Args:
            samples: Not empty, at 16 kHz, in [-1, 1].
        """
        padded = samples
        while len(padded) < _SEGMENT:
            padded = np.concatenate((padded, padded))
        found = []
        for second in range(max(1, len(padded) // _RATE - 9)):
            segment = padded[second * _RATE : int((second + 9.01) * _RATE)]
            if len(segment) < _SEGMENT:  # upstream leaves out what its rounding cuts short
                continue
            raw = self.overall.run(None, {"input_1": segment[None]})[0][0]
            (mos,) = self.p808.run(None, {"input_1": log_mel(segment[:-160])[None]})[0][0]
            curves = (_SIGNAL, _BACKGROUND, _OVERALL)
            found.append([*map(np.polyval, curves, raw), mos])
        signal, background, overall, p808 = np.mean(found, axis=0)
        return {
            "dnsmos_signal": float(signal),
            "dnsmos_background": float(background),
            "dnsmos_overall": float(overall),
            "dnsmos_p808": float(p808),
            "plcmos": self._plcmos(samples),
        }

    def _plcmos(self, samples: Samples) -> float:
        raters = np.random.RandomState(0).normal(size=(_RATERS, 1, 64)).astype(np.float32)
        features = log_power(samples)[None, None]
        outputs = [
            self.plc.run(None, {"degraded_audio": features, "rater_embed": rater})[0]
            for rater in raters
        ]
        return float(np.mean([np.ravel(output)[0] for output in outputs]))


def _installed(_: object) -> dict[str, str] | None:
    """Return the version; None where the wheel, or SciPy to resample for it, is not installed."""
    try:
        return {"speechmos": version("speechmos"), "scipy": version("scipy")}
    except PackageNotFoundError:
        return None


def open_networks() -> OpinionNetworks:
    """Return the networks of the installed wheel."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it doubles the memory of activations, and saves no time
    folder = Path(str(distribution("speechmos").locate_file("speechmos")))
    return OpinionNetworks(
        *(
            onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
            for name in (
                "dnsmos_models/sig_bak_ovr.onnx",
                "dnsmos_models/model_v8.onnx",
                "plcmos_models/plcmos_v2.onnx",
            )
        )
    )


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


def _score(networks: OpinionNetworks, audio: Audio) -> dict[str, float]:
    from tts_compress.evaluation.resampling import finite_samples

    samples = np.clip(finite_samples(audio, _RATE), -1.0, 1.0)
    # PLCMOS takes nothing shorter than some windows.
    return networks.scores(np.pad(samples, (0, max(0, _RATE - len(samples)))))


def _open(_: object) -> Callable[[Audio], dict[str, float]]:
    return partial(_score, open_networks())


_MEASURE = Measure(name="opinion", settings=_installed, open=_open)


def _compute(name: str, run: Run) -> Paired | None:
    found = run.measurements(_MEASURE)
    if found is None:
        return None
    before, after = ([one[role][name] for one in found] for role in _MEASURE.roles)
    return compare_pairs(run, before, after)


def _metric(name: str, label: str) -> Metric:
    return Metric(
        name=name,
        group="sound",
        result=Paired,
        measure=_MEASURE,
        compute=lambda run: _compute(name, run),
        optional=True,
        rows=Show(label).rows,
        terms={
            "DNSMOS, PLCMOS": "opinion scores from 1 to 5 that networks predict; higher is better. "
            "They were trained on noisy and interrupted calls: a change counts, the value does not."
        },
    )


METRICS = (
    _metric("dnsmos_overall", "DNSMOS, overall"),
    _metric("dnsmos_signal", "DNSMOS, signal"),
    _metric("dnsmos_background", "DNSMOS, background"),
    _metric("dnsmos_p808", "DNSMOS P.808"),
    _metric("plcmos", "PLCMOS"),
)
