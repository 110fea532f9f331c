"""The player's modules in Node, with stand-ins for the worker, the cache and the runtime."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.web.players import what_is_missing

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
  postMessage({ id, ...asked }) {
    if (id) this.turn = this.turn.then(() => this.answer(id, asked));
  }
  async answer(id, { open, speak }) {
    for (const part of open ? [{ sampleRate: 1 }] : [0, 1, 2].map((n) => `${speak[0]}${n}`)) {
      if (!this.ended) this.onmessage({ data: { id, part } });
      await new Promise((done) => setTimeout(done));
    }
    if (!this.ended) this.onmessage({ data: { id, part: null } });
  }
  terminate() { this.ended = true; }
};
const voice = await openInWorker("ort.mjs", "voice/");
const lose = () => worker.onerror({ message: "lost" });
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
        ('await Promise.all([listen("a", lose), listen("b")])', [["a0", "lost"], ["lost"]]),
    ],
    ids=["at-once", "closed", "lost"],
)
def test_sentences_in_a_worker_end_each_with_its_own_sound(said: str, expected: Any) -> None:
    """Two at once waited for ever, and lost sound; so did one when the voice was closed."""
    assert _run(_WORKER % said) == expected


_CACHE = """
import { createHash } from "node:crypto";
import { fetched } from "./voice.mjs";
const kept = new Map();
globalThis.caches = { open: async () => ({
  match: async (key) => kept.get(String(key))?.clone(),
  keys: async (url) => [...kept.keys()].filter((key) => key.split("?")[0] === String(url)),
  delete: async (key) => kept.delete(key),
  put: async (key, response) => kept.set(String(key), response),
}) };
let [served, asked] = ["old", []];
globalThis.fetch = async (url, options) => (asked.push(options?.cache), new Response(served));
const get = fetched("http://page/voice/");
const hash = (text) => createHash("sha256").update(text).digest("hex");
const read = (text) => get("weights.bin", hash(text)).then(
  (bytes) => new TextDecoder().decode(bytes), (error) => error.message);
const heard = [await read("old"), await read("new")];
served = "new";
heard.push(await read("new"), await read("new"));
delete globalThis.caches; // as for a page without HTTPS
Object.defineProperty(globalThis, "crypto", { value: undefined });
heard.push(await read("unseen"));
console.log(JSON.stringify({ heard, asked, kept: [...kept.keys()], wanted: hash("new") }));
"""


def test_a_file_is_kept_by_the_hash_that_it_has() -> None:
    """A file that an earlier release had under that name was kept for ever as the new one."""
    page = _run(_CACHE)
    wrong = "voice/weights.bin is not the file that is wanted: its SHA-256 is another"
    assert page["heard"] == ["old", wrong, "new", "new", "new"]
    assert page["asked"] == ["no-cache"] * 4
    assert page["kept"] == [f"http://page/voice/weights.bin?sha256={page['wanted']}"]


_PROVIDERS = """
import { openVoice } from "./voice.mjs";
let [opened, released] = [0, 0];
const tensor = (data) => ({ type: "float32", data: Float32Array.from(data), dims: [data.length] });
const ort = { env: { wasm: {} }, Tensor: class {}, InferenceSession: {
  create: async (bytes, { executionProviders: [provider] }) => {
    if (provider === "third" && opened === 3) throw new Error("no memory");
    opened++;
    const run = async () => {
      if (provider === "first") throw new Error("the kernel failed");
      return { x: tensor([provider === "second" ? 0 : 1]) };
    };
    return { run, release: async () => { released++; } };
  },
} };
const stages = [{ graph: "stage1.onnx" }];
const config = { sha256: {}, sample_rate: 8000, inputs: {}, encoder: "encoder.onnx", output: "x" };
const open = (canary, providers, stages = []) => {
  const stated = new TextEncoder().encode(JSON.stringify({ ...config, canary, stages }));
  return openVoice(ort, async () => stated, { providers });
};
const canary = { size: 2, hop: 1, edges: [0, 1], at: 0, samples: 1, floor_db: -40, tolerance_db: 1,
  ids: [1], inputs: {}, levels_db: [[0]] };
const failed = await open(canary, ["first", "second"]).catch((error) => error.message);
const failedLater = await open(canary, ["third"], stages).catch((error) => error.message);
const counts = [opened, released];
const free = await open(null, ["wasm"]);
const right = await open({ ...canary, floor_db: 0 }, ["wasm"]);
const checked = [free.checked, right.checked];
console.log(JSON.stringify({ failed, failedLater, counts, checked }));
"""


def test_what_a_provider_opened_is_released_when_it_fails() -> None:
    """Where it threw, and not only made another sound, its sessions were kept."""
    page = _run(_PROVIDERS)
    assert page["failed"].startswith("first: the kernel failed; second: its sound is ")
    assert page["failedLater"] == "third: no memory"
    assert page["counts"] == [3, 3]
    assert page["checked"] == [False, True], "of no sound to compare, and of one"


_TYPES = """
globalThis.Float16Array ??= class Float16Array extends Float32Array {}; // Node 24 has it
const { Tensor } = await import("./node_modules/onnxruntime-common/dist/esm/index.js");
const { speakStages } = await import("./stream.mjs");
let feeds;
const run = async (given) => (feeds = given, { x: { data: new Float32Array(1) } });
const types = %s;
const inputs = Object.fromEntries(types.map((type) => [type, [[1, 2], type]]));
const voice = { config: { inputs, output: "x" }, encoder: { run }, stages: [] };
for await (const _ of speakStages({ Tensor }, voice, [])) break;
const read = ({ type, data }) => [type, [...data].map(Number)];
console.log(JSON.stringify(types.map((type) => read(feeds[type]))));
"""


def test_inputs_of_any_type_of_numbers_are_given() -> None:
    """The runtime refused all but int64 and float32."""
    if reason := what_is_missing("node"):
        pytest.skip(reason)
    types = ["int64", "int32", "int8", "uint8", "float64", "float32", "float16"]
    assert _run(_TYPES % json.dumps(types)) == [[name, [1, 2]] for name in types]
