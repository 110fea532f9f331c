"""The browser's example: it builds, speaks both voices, and says what is wrong."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.web.players import served, what_is_missing
from tests.browser import Browser
from tests.models.contract.conftest import make_kokoro  # noqa: F401 -- a fixture
from tts_compress import compress, load
from tts_compress.export.stream import export_stream
from tts_compress.models.base import Speaking

pytestmark = pytest.mark.slow

_EXAMPLE = Path(__file__).parents[2] / "examples" / "web"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := what_is_missing("chromium"):
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("page") / "web"
    command = [sys.executable, str(_EXAMPLE / "build.py"), str(out)]
    # A scheme without calibration, which takes longer than all the rest.
    subprocess.run([*command, "--scheme", "int8-weight-only"], check=True, timeout=300)
    return out


@contextmanager
def _opened(folder: Path, profile: Path, end: str = "ready") -> Iterator[Browser]:
    """Open the page; yield the browser when its status begins with a word."""
    browser = Browser(profile)
    try:
        with served(folder, folder) as (url, _):
            browser.open_tab()
            browser.call("Page.navigate", url=f"{url}/#speak" if end == "done" else url)
            status = "document.getElementById('status')?.textContent"
            browser.wait_for(f"{status}?.startsWith('{end}')")
            yield browser
    finally:
        browser.close()


def test_both_voices_speak(page: Path, tmp_path: Path) -> None:
    with _opened(page, tmp_path / "profile", "done") as browser:
        shown = browser.run("document.body.outerHTML")
    assert len(re.findall(r'<audio[^>]* src="blob:', shown)) == 3
    assert re.findall(r'data-of="size">([\d.]+) MB<', shown)[0] == "9.59"
    assert "times smaller" in shown


def test_what_is_not_there_is_named(page: Path, tmp_path: Path) -> None:
    voice = page / "fp32" / "demo.onnx"
    kept = voice.rename(page / "elsewhere.onnx")
    try:
        with _opened(page, tmp_path / "profile", "cannot start") as browser:
            shown = browser.run("document.getElementById('status').textContent")
    finally:
        kept.rename(voice)
    assert shown == "cannot start: fp32/demo.onnx cannot be fetched: the server answered 404"


def test_a_sound_that_was_compared_with_none_is_not_called_right(
    page: Path, tmp_path: Path
) -> None:
    stated = page / "small" / "stream" / "stream.json"
    text = stated.read_text(encoding="utf-8")
    shown: list[Any] = []
    try:
        for content in (text, json.dumps(json.loads(text) | {"canary": None})):
            stated.write_text(content, encoding="utf-8")
            with _opened(page, tmp_path / str(len(shown))) as browser:
                boxes = "[...document.querySelectorAll('[data-of=checked]')]"
                shown.append(browser.run(f"{boxes}.map((box) => box.textContent)"))
    finally:
        stated.write_text(text, encoding="utf-8")
    assert shown == [
        ["not checked", "not checked", end] for end in ("right, on wasm", "not checked")
    ]


def test_the_first_sound_comes_long_before_the_whole(page: Path, tmp_path: Path) -> None:
    """In stages: at most 0.3 of the time that the same voice takes unsplit, and the same samples.

    Medians of runs that take turns, of the longest sentence, with the browser's own clock.
    """
    script = """(async () => {
      const ids = page.sentences.map((s) => s.ids).sort((a, b) => b.length - a.length)[0];
      const scales = [0, page.scales[1], 0]; // no noise: both say the same
      const shares = [];
      let off = 0;
      for (let run = 0; run < 5; run++) {
        const whole = await listen(voices[1], ids, scales);
        const parts = await listen(voices[2], ids, scales);
        shares.push(parts.first / whole.all);
        parts.sound.forEach((v, i) => (off = Math.max(off, Math.abs(v - whole.sound[i]))));
        if (parts.sound.length !== whole.sound.length) off = 2;
      }
      return { off, share: shares.sort((a, b) => a - b)[2] };
    })()"""
    with _opened(page, tmp_path / "profile") as browser:
        found = browser.run(script)
    assert found["off"] < 1e-5
    assert found["share"] <= 0.3


_OPEN = """
  const { openVoice, openInWorker } = await import("./voice.mjs");
  const { problem } = await import("./canary.mjs");
  const { openStages, speakStages } = await import("./stream.mjs");
  const ort = await import("./ort/ort.wasm.min.mjs");
  const folder = new URL("small/stream/", location.href).href;
  const config = await (await fetch(`${folder}stream.json`)).json();
"""

_GARBLE = (
    """(async () => {"""
    + _OPEN
    + """
  const rms = (x) => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / x.length);
  const kinds = [
    (x) => x.fill(0),
    (x, r) => x.forEach((v, i) => { if (((i >> 6) + r) % 3 === 0) x[i] = 0; }),
    (x, r) => {
      const most = rms(x) / (2 + (r % 3));
      x.forEach((v, i) => (x[i] = Math.max(-most, Math.min(most, v))));
    },
    (x, r) => x.forEach((v, i) => (x[i] = v * (0.1 + 0.05 * (r % 9)))),
    (x) => x.forEach((v, i) => { if (i % 2) [x[i - 1], x[i]] = [v, x[i - 1]]; }),
    (x) => x.reverse(),
  ];
  // As an accelerator does: the operators of one stage compute something else, without an error.
  let [garbled, draw] = [-1, 0];
  const planted = { ...ort, InferenceSession: { create: async (bytes, options) => {
    const here = { ...options, executionProviders: ["wasm"] };
    const session = await ort.InferenceSession.create(bytes, here);
    const number = planted.count++;
    if (options.executionProviders[0] === "wasm") return session;
    const run = session.run.bind(session);
    session.run = async (feeds) => {
      const made = await run(feeds);
      if (number === garbled) for (const { type, data } of Object.values(made)) {
        if (type === "float32") kinds[draw % kinds.length](data, draw);
      }
      return made;
    };
    return session;
  } }, count: 0 };
  const get = async (name) => new Uint8Array(await (await fetch(folder + name)).arrayBuffer());
  const voice = await openStages(planted, config, get, "planted");
  const speak = (ids, inputs) => speakStages(planted, voice, ids, inputs);
  const right = await problem(config.canary, speak);
  const missed = [];
  for (draw = 0; draw < 100; draw++) {
    garbled = (7 * draw) % voice.sessions.length;
    if (!(await problem(config.canary, speak))) missed.push([draw, garbled]);
  }
  planted.count = draw = 0;
  garbled = 3;
  const opened = await openVoice(planted, folder, { providers: ["planted", "wasm"] });
  return { right, missed, provider: opened.provider, left: opened.left };
})()"""
)

_WORKER = (
    """(async () => {"""
    + _OPEN
    + """
  const { ids, inputs } = config.canary;
  const said = async (voice) => {
    const sound = [];
    for await (const part of voice.speak(ids, inputs)) sound.push(...part);
    return sound;
  };
  const here = await openVoice(ort, folder);
  const worker = await openInWorker("./ort/ort.wasm.min.mjs", folder);
  for await (const part of worker.speak(ids, inputs)) break; // stopped after its first sound
  const [alone, there] = [await said(here), await said(worker)];
  worker.close();
  const kept = (await (await caches.open("tts-compress")).keys()).length;
  const off = Math.max(...alone.map((v, i) => Math.abs(v - there[i])));
  const files = Object.keys(config.sha256).length;
  return { off, equal: alone.length === there.length, kept, files };
})()"""
)


def test_a_provider_that_garbles_is_left(page: Path, tmp_path: Path) -> None:
    """Planted in one stage in 100 ways; the provider after it is taken."""
    with _opened(page, tmp_path / "profile") as browser:
        heard = browser.run(_GARBLE)
    assert heard["right"] is None
    assert heard["missed"] == []
    assert heard["provider"] == "wasm"
    assert [one["provider"] for one in heard["left"]] == ["planted"]
    assert "dB from what it should be" in heard["left"][0]["reason"]


def test_a_worker_says_the_same_and_files_are_kept(page: Path, tmp_path: Path) -> None:
    with _opened(page, tmp_path / "profile") as browser:
        heard = browser.run(_WORKER)
    assert heard["equal"]
    assert heard["off"] < 1e-5
    assert heard["kept"] == heard["files"]


_BY_NAME = """(async (calls) => {
  const { openInWorker } = await import("./voice.mjs");
  const voice = await openInWorker("./ort/ort.wasm.min.mjs", "kokoro/stream/");
  const sounds = [];
  for (const [ids, inputs] of calls) {
    const sound = [];
    for await (const part of voice.speak(ids, inputs)) sound.push(...part);
    sounds.push(sound);
  }
  voice.close();
  return { sounds, provider: voice.provider, left: voice.left };
})"""


def test_a_voice_of_styles_speaks_in_int8(
    page: Path,
    make_kokoro: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Kokoro's contract: a text's length chooses the row of a named voice's style."""
    small: Any = compress(load(make_kokoro(hop=320)), scheme="int8", quality="fast")
    export_stream(small, page / "kokoro", whole=True, force=True)
    stated = json.loads((page / "kokoro" / "stream" / "stream.json").read_text(encoding="utf-8"))
    assert stated["canary"]
    calls, wanted = [], []
    for speaker in ("af_heart", "am_adam"):
        voice = small.speaking_as(Speaking(speaker=speaker))
        for text in ("Hello there.", "Hello there, and thank you for listening."):
            ids = next(voice.calibration_calls([text], seed=0))["tokens"][0].tolist()
            calls.append([ids, {} if speaker == "af_heart" else {"style": speaker}])
            wanted.append(voice.synthesize(text, seed=0).samples)
    with _opened(page, tmp_path / "profile") as browser:
        heard = browser.run(f"{_BY_NAME}({json.dumps(calls)})")
    assert (heard["provider"], heard["left"]) == ("wasm", [])
    for sound, right in zip(heard["sounds"], wanted, strict=True):
        error = np.square(sound - right).mean()
        assert error < 0.01 * np.square(right).mean()
    assert np.square(wanted[0] - wanted[2]).mean() > 0.1 * np.square(wanted[0]).mean()
