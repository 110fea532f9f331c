"""The player's modules in Node, with stand-ins for the worker, the cache and the runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_EXAMPLE = Path(__file__).parents[2] / "examples" / "web"


def _run(script: str) -> Any:
    """Return what a script prints, as JSON; one that waits for ever ends with an error."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no node on this machine")
    command = [node, "--input-type=module", "--eval", script]
    run = subprocess.run(command, cwd=_EXAMPLE, check=False, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr.decode()
    return json.loads(run.stdout)


_WORKER = """
import { openInWorker } from "./voice.mjs";
globalThis.location = { href: "http://page/" };
let worker;
globalThis.Worker = class {
  constructor() { [worker, this.turn] = [this, Promise.resolve()]; }
  postMessage({ id, open, speak }) { if (id) this.turn = this.turn.then(() => this.answer(id, open, speak)); }
  async answer(id, open, speak) {
    for (const part of open ? [{ sampleRate: 1 }] : [0, 1, 2].map((n) => `${speak[0]}${n}`)) {
      if (!this.ended) this.onmessage({ data: { id, part } });
      await new Promise((done) => setTimeout(done));
    }
    if (!this.ended) this.onmessage({ data: { id, part: null } });
  }
  terminate() { this.ended = true; }
};
const voice = await openInWorker("ort.mjs", "voice/");
const listen = async (name, then = () => {}) => {
  const parts = [];
  try {
    for await (const part of voice.speak(name)) then(parts.push(part));
  } catch (error) {
    parts.push(error.message);
  }
  return parts;
};
const said = %s;
console.log(JSON.stringify(said));
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            '[await Promise.all([listen("a"), listen("b")]), await listen("c")]',
            [[["a0", "a1", "a2"], ["b0", "b1", "b2"]], ["c0", "c1", "c2"]],
        ),
        (
            '[await Promise.all([listen("a", voice.close), listen("b")]), await listen("c")]',
            [[["a0", "the voice is closed"], ["the voice is closed"]], ["the voice is closed"]],
        ),
        (
            'await Promise.all([listen("a", () => worker.onerror({ message: "lost" })), listen("b")])',
            [["a0", "lost"], ["lost"]],
        ),
    ],
    ids=["at-once", "closed", "lost"],
)
def test_sentences_in_a_worker_end_each_with_its_own_sound(said: str, expected: Any) -> None:
    """Two at once waited for ever, and lost sound; so did one when the voice was closed."""
    assert _run(_WORKER % said) == expected
