"""Runtimes that play the voices of a plan: Node, Chromium, onnxruntime, OpenVINO, sherpa-onnx."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.web.plan import REFERENCE, Plan
from benchmarks.web.server import served
from tts_compress.audio import Samples
from tts_compress.environment import installed_version
from tts_compress.errors import ModelError
from tts_compress.onnx.session import open_session, run_session

ROOT = Path(__file__).parents[2]
_MODULES = ROOT / "examples" / "web" / "node_modules" / "onnxruntime-web"
_PATIENCE_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedVoice:
    """One voice in a runtime, on one thread."""

    sound: Samples
    """Output of the fed graph."""

    seconds: tuple[float, ...]
    """Times of the runs that were timed."""

    samples: tuple[int, ...]
    """Lengths of what these made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The voices of a plan in a runtime."""

    player: str
    version: str
    voices: Mapping[str, PlayedVoice]

    def speed_ratio(self, name: str) -> float:
        """Return how many times as fast as FP32 a voice is: the median of the rounds."""
        costs = {
            voice: np.array(self.voices[voice].seconds) / np.array(self.voices[voice].samples)
            for voice in (REFERENCE, name)
        }
        return float(np.median(costs[REFERENCE] / costs[name]))

    def snr_db(self, name: str, wanted: Samples) -> float:
        """Return the ratio of a sound to the difference of a voice's fed sound from it."""
        error = wanted.astype(np.float64) - self.voices[name].sound
        return float(10 * np.log10(np.square(wanted).mean() / max(np.square(error).mean(), 1e-30)))

    def rate(self, name: str, sample_rate: int) -> float:
        """Return the seconds of speech that a voice makes in a second."""
        voice = self.voices[name]
        return median(voice.samples) / sample_rate / median(voice.seconds)


def what_is_missing(player: str) -> str | None:
    """Return what a player lacks on this machine, in words; None where nothing does."""
    if player in {"node", "chromium"}:
        if find_program(player) is None:
            return f"no {player} on this machine"
        if not _MODULES.is_dir():
            return "onnxruntime-web is not installed; run: make test-web"
        return None
    package = player.replace("-", "_")
    return None if find_spec(package) else f"{player} is not installed; run: make install"


def find_program(player: str) -> str | None:
    """Return the path of Node or of a Chromium, or None."""
    names = [player] if player == "node" else ["chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if (path := shutil.which(name))), None)


def play(player: str, plan: Plan) -> Played:
    """Let a runtime play the voices of a plan.

    Raises:
        ModelError: The runtime is not there, or refuses a voice.
    """
    if reason := what_is_missing(player):
        raise ModelError(reason)
    return _PLAYERS[player](plan)


def _in_node(plan: Plan) -> Played:
    command = [str(find_program("node")), str(Path(__file__).with_name("node.mjs"))]
    run = subprocess.run(
        [*command, str(plan.folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    if run.returncode:
        raise ModelError(f"node: {run.stderr.strip()[-500:]}")
    return _from_json("node", json.loads(run.stdout))


def _in_chromium(plan: Plan) -> Played:
    with tempfile.TemporaryDirectory() as profile, served(ROOT, plan.folder) as server:
        page = f"{server.address}/benchmarks/web/browser.html"
        browser = subprocess.Popen(
            [str(find_program("chromium")), *HEADLESS, f"--user-data-dir={profile}", page],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            found = server.result(_PATIENCE_S)
        finally:
            browser.terminate()
            browser.wait()
    if found is None or "error" in found:
        raise ModelError(f"chromium: {found['error'] if found else 'no answer'}")
    return _from_json("chromium", found)


HEADLESS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    *(("--no-sandbox",) if os.name == "posix" and os.geteuid() == 0 else ()),
)


def _from_json(player: str, found: Mapping[str, Any]) -> Played:
    voices = {
        name: PlayedVoice(
            sound=np.frombuffer(base64.b64decode(voice["sound"]), np.float32),
            seconds=tuple(voice["seconds"]),
            samples=tuple(voice["samples"]),
        )
        for name, voice in found["voices"].items()
    }
    return Played(player=player, version=found["version"], voices=voices)


def _in_onnxruntime(plan: Plan) -> Played:
    def open_file(path: Path) -> Callable[[Mapping[str, Any]], Samples]:
        session = open_session(path, path.name, threads=1)
        return lambda feeds: np.asarray(run_session(session, feeds, path.name)[0])

    return _in_python("onnxruntime", plan, open_file)


def _in_openvino(plan: Plan) -> Played:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}

    def open_file(path: Path) -> Callable[[Mapping[str, Any]], Samples]:
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
        return lambda feeds: np.array(compiled(dict(feeds))[0])

    return _in_python("openvino", plan, open_file, without=("int8",))


def _in_python(
    player: str,
    plan: Plan,
    open_file: Callable[[Path], Callable[[Mapping[str, Any]], Samples]],
    without: tuple[str, ...] = (),
) -> Played:
    """Time voices in turns and return them; `without` those that the runtime refuses."""
    voices = [name for name in plan.voices if name not in without]
    runs = {name: open_file(plan.folder / f"{name}.onnx") for name in voices}
    feeds = {name: plan.feeds[name] for name in ("input", "input_lengths", "scales")}
    seconds: dict[str, list[float]] = {name: [] for name in voices}
    samples: dict[str, list[int]] = {name: [] for name in voices}
    for turn in range(-1, plan.rounds):
        for name, run in runs.items():
            began = perf_counter()
            made = run(feeds)
            if turn >= 0:  # the first one also allocates
                seconds[name].append(perf_counter() - began)
                samples[name].append(made.size)
    return Played(
        player=player,
        version=str(installed_version(player)),
        voices={
            name: PlayedVoice(
                sound=open_file(plan.folder / f"{name}.fed.onnx")(plan.feeds).reshape(-1),
                seconds=tuple(seconds[name]),
                samples=tuple(samples[name]),
            )
            for name in voices
        },
    )


_PLAYERS: dict[str, Callable[[Plan], Played]] = {
    "onnxruntime": _in_onnxruntime,
    "node": _in_node,
    "chromium": _in_chromium,
    "openvino": _in_openvino,
}
PLAYERS = tuple(_PLAYERS)
