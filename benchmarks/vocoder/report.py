"""The results as JSON and as tables, and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.report import table
from benchmarks.vocoder.contestants import CONTESTANTS, FP32, NAIVE, OURS, RECORDING
from benchmarks.vocoder.judge import QUANTITIES, Change, Judged, Quantity
from tts_compress.environment import describe_environment, installed_version
from tts_compress.evaluation.formatting import signed

_DECIDING = ("distortion_db", "log_mel_db", "dnsmos_overall")
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_LABELS = [quantity.label for quantity in QUANTITIES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    judged: Judged
    clips: Sequence[str]
    speed: Mapping[str, float]
    """FP32's time over the contestant's."""

    command: str


def order_is_shown(judged: Judged, quantity: Quantity, stock: str = NAIVE) -> bool:
    """Return True if FP32 is better than ours and ours better than stock, whatever the clips.

    That is: no interval of the differences holds zero, and those from FP32 do not touch.
    """
    ours, other, step = (
        _harm(judged.change(before, after, quantity), quantity)
        for before, after in ((FP32, OURS), (FP32, stock), (OURS, stock))
    )
    return ours[0] > 0 and step[0] > 0 and ours[1] < other[0]


def _harm(change: Change, quantity: Quantity) -> tuple[float, float]:
    """Return the interval with what is worse above zero."""
    if quantity.better == "lower":
        return change.low, change.high
    return -change.high, -change.low


def holds(judged: Judged) -> bool:
    """Return True if the order is shown in each quantity that decides."""
    return all(order_is_shown(judged, q) for q in QUANTITIES if q.name in _DECIDING)


def document(result: Result) -> dict[str, object]:
    """Return everything as plain data."""
    judged = result.judged
    return {
        "command": result.command,
        "environment": describe_environment(),
        "speechmos": installed_version("speechmos"),
        "recognizer": judged.recognizer,
        "clips": list(result.clips),
        "words": judged.words.tolist(),
        "mu_law_distortion_db": judged.coded_db,
        "speed": dict(result.speed),
        "contestants": {
            name: {
                "values": {quantity: row.tolist() for quantity, row in values.items()},
                "against_fp32": {q.name: asdict(judged.change(FP32, name, q)) for q in QUANTITIES},
            }
            for name, values in judged.values.items()
        },
    }


def markdown(result: Result) -> list[str]:
    """Return the lines of the report."""
    judged = result.judged
    contestants = [c for c in CONTESTANTS if c.name in judged.values]
    stock = [c.name for c in contestants if c.kind == "stock"]
    others = [name for name in judged.values if name not in {RECORDING, FP32}]
    environment = describe_environment()
    processor, packages = environment["processor"], environment["packages"]
    versions = ", ".join(f"{name} {packages[name]}" for name in ("onnxruntime", "torch", "numpy"))
    made_by = [(f"`{c.name}`", c.how, f"{result.speed[c.name]:.2f}") for c in contestants]
    means = [[f"`{name}`", *(_mean(judged, name, q) for q in QUANTITIES)] for name in judged.values]
    return [
        "# HiFi-GAN V2 in FP32, in our INT8, in stock INT8",
        "",
        *_in_words(judged, stock),
        "",
        f"{len(result.clips)} recordings of LJSpeech, from their own spectra. What is calibrated "
        "hears one half of them and is judged on the other, in both directions. "
        f"Words are those of {len(judged.words)} texts of `en-full`, spoken by the demo voice and "
        "then by the vocoder from their spectra. Distortion is the "
        "distance of the metric `distortion`, from the recording; to FP32's, 8-bit mu-law adds "
        f"{judged.coded_db:.3f} dB. In brackets: 95 % intervals over resampled recordings.",
        "",
        *table(("", "made by", "times FP32's speed"), made_by, "ll"),
        "",
        "## Mean values",
        "",
        *table(("", *_LABELS), means),
        "",
        "## Against FP32",
        "",
        *_changes(judged, FP32, others),
        "",
        f"## Stock INT8 against `{OURS}`",
        "",
        *_changes(judged, OURS, stock),
        "",
        f"Words are heard by {judged.recognizer}. Opinions are "
        f"predicted by the networks of speechmos "
        f"{installed_version('speechmos')}, which were trained on calls: differences count, values "
        "do not. Speed: one thread, in turns, least of ten runs; other work on the machine blurs "
        "it.",
        "",
        f"{processor['model']}, {processor['integer_kernels']}, {processor['cores']} cores; "
        f"{versions}. Made by `{result.command}` (`make bench-vocoder`).",
    ]


def _in_words(judged: Judged, stock: Sequence[str]) -> list[str]:
    """Return what the tables say."""
    deciding = [quantity for quantity in QUANTITIES if quantity.name in _DECIDING]
    missing = [q.label for q in deciding if not order_is_shown(judged, q)]
    if missing:
        said = f"That FP32 is better than `{OURS}`, and `{OURS}` than `{NAIVE}`, is not shown by: "
        lines = [f"{said}{'; '.join(missing)}."]
    else:
        lines = [
            f"FP32 is better than `{OURS}`, and `{OURS}` better than `{NAIVE}`, in distortion, "
            "log-mel distance and predicted opinion (DNSMOS, overall) at once; no two intervals "
            "touch."
        ]
    *_, words = QUANTITIES
    shares = {name: f"{100 * judged.mean(name, words):.1f} %" for name in (FP32, OURS, NAIVE)}
    lines += [
        "",
        f"Of {judged.words.sum()} words of {len(judged.words)} sentences the recognizer mishears "
        f"{shares[FP32]} in FP32, {shares[OURS]} in `{OURS}` "
        f"({_more(judged.change(FP32, OURS, words))}) and {shares[NAIVE]} in `{NAIVE}` "
        f"({_more(judged.change(FP32, NAIVE, words))}).",
        "",
        f"Stock INT8 shown to be worse than `{OURS}`, where that is shown to be worse than FP32:",
        "",
    ]
    for quantity in QUANTITIES:
        shown = [f"`{name}`" for name in stock if order_is_shown(judged, quantity, name)]
        lines.append(f"- {quantity.label}: {', '.join(shown) or 'none is shown to be'}")
    return lines


def _more(change: Change) -> str:
    if change.low > 0:
        return "more than in FP32"
    return "fewer than in FP32" if change.high < 0 else "no difference that these clips can show"


def _changes(judged: Judged, before: str, names: Sequence[str]) -> list[str]:
    rows = [
        [f"`{name}`", *(_change(judged, before, name, q) for q in QUANTITIES)] for name in names
    ]
    return table(("", *_LABELS), rows)


def _mean(judged: Judged, name: str, quantity: Quantity) -> str:
    value = judged.mean(name, quantity)
    return f"{100 * value:.1f}" if quantity.share else f"{value:.3f}"


def _change(judged: Judged, before: str, after: str, quantity: Quantity) -> str:
    change = judged.change(before, after, quantity)
    factor, digits = (100, 1) if quantity.share else (1, 3)
    mean, low, high = (signed(factor * v, digits) for v in (change.mean, change.low, change.high))
    return f"{mean} ({low} {_ELLIPSIS} {high})"
