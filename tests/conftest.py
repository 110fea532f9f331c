"""Fixtures for every part of the suite: tiny voices made from Piper's own network classes."""

import fcntl
import gc
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest

from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.config import data_file, demo_voice
from tts_compress.families import Upstream
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.models.checkout import known_upstreams

pytest_plugins = ["tests.snapshot"]

# A machine may be busy: a slow example is no failure.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# A voice with every component that a real one has.
_TINY = {
    "num_symbols": 256,
    "inter_channels": 16,
    "hidden_channels": 16,
    "filter_channels": 32,
    "n_layers": 1,
    "upsample_initial_channel": 32,
}


@pytest.fixture(scope="module")
def torchao() -> Iterator[Any]:
    """Return torchao's techniques, which `make install` puts beside the other packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(pathlib.Path(sys.prefix) / "torchao"))
        yield pytest.importorskip("torchao.quantization")


_LONGEST = (
    "tests/processors/test_suite.py",
    "tests/test_docs_run.py",
    "tests/compression/test_vocoder.py",
)
"""Files whose tests take the longest. Each is run by one process, which shares what
its fixtures make; begun last, it would keep one core busy and leave the others idle."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for garbage neither during the imports nor, later, among what they leave.

    Those are half a million objects, which every full collection would go through.
    """
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_each_worker() -> Iterator[None]:
    """Give onnxruntime one thread where tests run side by side, as `OMP_NUM_THREADS` gives torch.

    Threads of several processes that wait by spinning hold each other up. Sessions that are opened
    without options keep the threads of the runtime.
    """
    import onnxruntime

    class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1

    with pytest.MonkeyPatch.context() as patch:
        if "PYTEST_XDIST_WORKER" in os.environ:
            patch.setattr(onnxruntime, "SessionOptions", Options)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_list_of_fonts() -> Iterator[None]:
    """Leave matplotlib its list of fonts where tests change caches: it takes seconds to make."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with pytest.MonkeyPatch.context() as patch:
        if "MPLCONFIGDIR" not in os.environ:
            patch.setenv("MPLCONFIGDIR", str(cache / "matplotlib"))
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that returns a folder, which is written by the first process that asks.

    Tests run side by side in several. The folder's path is the same for all; do not write into it.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def make(name: str, write: Callable[[Path], object]) -> Path:
        folder = root / "made" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                with TemporaryDirectory(dir=folder.parent) as temporary:
                    write(Path(temporary) / name)
                    (Path(temporary) / name).rename(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def assets() -> Path:
    """Return the folder of recordings and voices that are too large for the repository.

    It is `TTS_COMPRESS_ASSETS`, or `shared/assets` beside the checkout; tests skip without it.
    """
    beside = Path(__file__).parents[2] / "shared" / "assets"
    folder = Path(os.environ.get("TTS_COMPRESS_ASSETS", beside))
    if not folder.is_dir():
        pytest.skip("no assets; set TTS_COMPRESS_ASSETS to their folder")
    return folder


@pytest.fixture(scope="session")
def demo() -> Path:
    """Return the embedded voice, trained on real speech."""
    path = demo_voice()
    if not path.is_file():
        pytest.skip("the embedded voice is not in this checkout")
    return path


@pytest.fixture(scope="session")
def voice_config() -> dict[str, Any]:
    """Return a voice's configuration as Piper's training writes it."""
    pytest.importorskip("piper.phoneme_ids")
    from benchmarks.voices import piper

    return piper.voice_config("tiny", 16_000, noise_w=0.8)


@pytest.fixture(scope="session")
def make_checkpoint() -> Callable[..., dict[str, Any]]:
    """Return a function that builds a checkpoint with seeded weights, in Lightning's layout."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("piper.train.vits.models")
    from benchmarks.voices import piper

    def make(**changes: Any) -> dict[str, Any]:
        stated = _TINY | changes
        network = piper.random_network(stated)
        with torch.no_grad():
            network.dec.conv_post.weight *= 20  # loud enough to be audible
        weights = piper.training_weights(network) | {"model_d.unused": torch.zeros(1)}
        # Older trainings left paths among the hyper-parameters.
        stated["dataset_dir"] = pathlib.PosixPath("/data")
        return {"epoch": 1, "hyper_parameters": stated, "state_dict": weights}

    return make


@pytest.fixture(scope="session")
def few_flows() -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which Piper's class has one spline, and couplings of two layers.

    It has three splines and four layers, and its arguments leave no choice. A runtime takes its
    time by the node when it opens a graph, and most nodes are of these, all alike.
    """
    models = pytest.importorskip("piper.train.vits.models")
    durations, couplings = models.StochasticDurationPredictor, models.ResidualCouplingBlock

    def few_durations(*sizes: Any, gin_channels: int) -> Any:
        return durations(*sizes[:4], 2, gin_channels=gin_channels)  # the last one is trained only

    def few_couplings(*sizes: Any, gin_channels: int) -> Any:
        return couplings(*sizes[:4], 2, gin_channels=gin_channels)

    @contextmanager
    def context() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(models, "StochasticDurationPredictor", few_durations)
            patch.setattr(models, "ResidualCouplingBlock", few_couplings)
            yield

    return context


@pytest.fixture(scope="session")
def tiny_checkpoint(
    made_once: Callable[..., Path],
    make_checkpoint: Callable[..., dict[str, Any]],
    few_flows: Callable[[], AbstractContextManager[None]],
    voice_config: dict[str, Any],
) -> Path:
    """Return a training checkpoint of a tiny voice of few flows, with its configuration."""
    torch = pytest.importorskip("torch")

    def write(folder: Path) -> None:
        folder.mkdir()
        with few_flows():
            torch.save(make_checkpoint(), folder / "tiny.ckpt")
        (folder / "tiny.ckpt.json").write_text(json.dumps(voice_config), encoding="utf-8")

    return made_once("checkpoint", write) / "tiny.ckpt"


@pytest.fixture(scope="session")
def tiny_path(
    made_once: Callable[..., Path],
    tiny_checkpoint: Path,
    few_flows: Callable[[], AbstractContextManager[None]],
) -> Path:
    """Return the tiny voice's `.onnx` file; do not write into its folder."""

    def write(folder: Path) -> None:
        with few_flows():
            load(tiny_checkpoint).save(folder)

    return made_once("tiny", write) / "tiny.onnx"


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> GraphModel:
    """Return the tiny voice, loaded."""
    voice = load(tiny_path)
    assert isinstance(voice, GraphModel)
    return voice


@pytest.fixture(scope="session")
def choir_path(
    made_once: Callable[..., Path],
    make_checkpoint: Callable[..., dict[str, Any]],
    few_flows: Callable[[], AbstractContextManager[None]],
    voice_config: dict[str, Any],
) -> Path:
    """Return the `.onnx` file of a tiny voice of the speakers anna, ben and cleo."""
    torch = pytest.importorskip("torch")
    names = {"anna": 0, "ben": 1, "cleo": 2}
    config = voice_config | {"num_speakers": 3, "speaker_id_map": names}

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "choir.ckpt.json").write_text(json.dumps(config), encoding="utf-8")
        with few_flows():
            checkpoint = make_checkpoint(num_speakers=3, gin_channels=8)
            # Far apart, as trained speakers are.
            checkpoint["state_dict"]["model_g.emb_g.weight"] *= 5
            torch.save(checkpoint, folder / "choir.ckpt")
            load(folder / "choir.ckpt").save(folder / "voice")

    return made_once("choir", write) / "voice" / "choir.onnx"


@pytest.fixture(scope="session")
def quick_recipe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a shipped Piper recipe that calibrates on three texts only.

    `int8` is the recipe as it is: formats chosen by listening have tests of their own.
    """
    folder = tmp_path_factory.mktemp("recipes")

    def write(scheme: str) -> Path:
        text = data_file("calib/recipes", "piper").read_text(encoding="utf-8")
        path = folder / f"{scheme}.toml"
        text = text.replace("[calibration]", "[calibration]\nutterances = 3")
        path.write_text(text.replace('quality = "good"\n', ""), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def compressed(
    made_once: Callable[..., Path], tiny: GraphModel, quick_recipe: Callable[[str], Path]
) -> Callable[[str], Path]:
    """Return a function that makes the tiny voice's artifact of a scheme, made once."""

    def make(scheme: str) -> Path:
        recipe = quick_recipe(scheme)
        return made_once(scheme, lambda folder: compress(tiny, scheme, recipe=recipe).save(folder))

    return make


@pytest.fixture(params=known_upstreams(), ids=lambda upstream: upstream.family)
def upstream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """Return a system that runs from a clone, which the environment does not name."""
    system: Upstream = request.param
    monkeypatch.delenv(system.variable, raising=False)
    return system


@pytest.fixture
def clone(upstream: Upstream, tmp_path: Path) -> Path:
    """Return a folder that looks like a clone, without a repository."""
    for marker in upstream.markers:
        (tmp_path / "clone" / marker).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / marker).touch()
    return tmp_path / "clone"


@pytest.fixture
def timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have evaluations time each text once, and open each model once, where nobody says otherwise.

    Six turns, each with two fresh processes, take most of the time of an evaluation of few texts.
    """
    from tts_compress.evaluation.options import EvaluationOptions

    defaults = EvaluationOptions.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timing_runs", 1)


def measure_no_cost(patch: pytest.MonkeyPatch) -> None:
    """Have evaluations measure no cost, for which they start four more processes."""
    from tts_compress.evaluation.stages import Timings

    timings = Timings(spent=((0.1,) * 5,) * 3, audio=((1.0,) * 5,) * 3)
    patch.setattr("tts_compress.evaluation.pairs.time_models", lambda *_: (timings, timings))


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have evaluations measure no cost."""
    measure_no_cost(monkeypatch)


@pytest.fixture(scope="session")
def compare_models() -> Callable[..., Any]:
    """Return a function that compares two language models in-process on the first one's tokens."""
    from tts_compress.evaluation.metrics.teacher_forcing import compare_scores

    def compare(reference: Any, candidate: Any, texts: Sequence[str]) -> Any:
        tokens = [reference.generate_tokens(text, seed=i) for i, text in enumerate(texts)]
        return compare_scores(
            (reference.logits(text, spoken), candidate.logits(text, spoken), spoken.chosen)
            for text, spoken in zip(texts, tokens, strict=True)
        )

    return compare


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command that is refused, and returns its line of error."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: sums in another order round otherwise, and threads wait."""
    if find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
