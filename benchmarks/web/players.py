"""Runtimes that play the voices of a plan: Node, Chromium, onnxruntime, OpenVINO, sherpa-onnx."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.timing import clocked, take_turns
from benchmarks.web.plan import REFERENCE, Plan
from tts_compress.audio import Samples
from tts_compress.environment import installed_version
from tts_compress.errors import ModelError
from tts_compress.onnx.session import open_session, run_session

ROOT = Path(__file__).parents[2]
_MODULES = ROOT / "examples" / "web" / "node_modules" / "onnxruntime-web"
_PATIENCE_S = 300


class PlayedVoice(NamedTuple):
    """One voice in a runtime, on one thread."""

    sound: Samples
    seconds: tuple[float, ...]
    samples: tuple[int, ...]


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
        if _find_program(player) is None:
            return f"no {player} on this machine"
        if not _MODULES.is_dir():
            return "onnxruntime-web is not installed; run: make test-web"
        return None
    package = player.replace("-", "_")
    return None if find_spec(package) else f"{player} is not installed; run: make install"


def _find_program(player: str) -> str | None:
    names = [player] if player == "node" else ["chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if (path := shutil.which(name))), None)


def play(player: str, plan: Plan) -> Played:
    """Let a runtime play the voices of a plan."""
    if reason := what_is_missing(player):
        raise ModelError(reason)
    return _PLAYERS[player](plan)


def _in_node(plan: Plan) -> Played:
    script = Path(__file__).with_name("node.mjs")
    command = [str(_find_program("node")), str(script), str(plan.folder)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_PATIENCE_S)
    if run.returncode:
        raise ModelError(f"node: {run.stderr.strip()[-500:]}")
    return _from_json("node", json.loads(run.stdout))


def _in_chromium(plan: Plan) -> Played:
    with tempfile.TemporaryDirectory() as profile, served(ROOT, plan.folder) as (url, results):
        page = f"{url}/benchmarks/web/browser.html"
        program = [str(_find_program("chromium")), *HEADLESS, f"--user-data-dir={profile}"]
        quiet = subprocess.DEVNULL
        browser = subprocess.Popen([*program, page], stdout=quiet, stderr=quiet)
        try:
            sent = results.get(timeout=_PATIENCE_S)
        except Empty:
            sent = {"error": "no answer"}
        finally:
            browser.terminate()
            browser.wait()
    if "error" in sent:
        raise ModelError(f"chromium: {sent['error']}")
    return _from_json("chromium", sent)


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


def _from_json(player: str, answer: Mapping[str, Any]) -> Played:
    voices = {
        name: PlayedVoice(
            sound=np.frombuffer(base64.b64decode(voice["sound"]), np.float32),
            seconds=tuple(voice["seconds"]),
            samples=tuple(voice["samples"]),
        )
        for name, voice in answer["voices"].items()
    }
    return Played(player=player, version=answer["version"], voices=voices)


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
    samples = {name: run(feeds).size for name, run in runs.items()}  # this one also allocates
    timed = {name: clocked(partial(run, feeds)) for name, run in runs.items()}
    times = take_turns(timed, rounds=plan.rounds, warm_ups=0)
    fed = {name: open_file(plan.folder / f"{name}.fed.onnx")(plan.feeds) for name in voices}
    return Played(
        player=player,
        version=str(installed_version(player)),
        voices={
            name: PlayedVoice(
                sound=fed[name].reshape(-1),
                seconds=tuple(ms / 1e3 for ms in times[name]),
                samples=(samples[name],) * plan.rounds,
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


@contextmanager
def served(root: Path, voices: Path) -> Iterator[tuple[str, "SimpleQueue[Any]"]]:
    """Serve a folder, and another one as `/voices/`; yield the URL, and what pages send."""
    results: SimpleQueue[Any] = SimpleQueue()

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = SimpleHTTPRequestHandler.extensions_map | {
            ".mjs": "text/javascript",
            ".wasm": "application/wasm",
        }

        def translate_path(self, path: str) -> str:
            name = path.partition("/voices/")[2]
            return str(voices / Path(name).name) if name else super().translate_path(path)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            results.put(json.loads(body))

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", results
        finally:
            http.shutdown()
