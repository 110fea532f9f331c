/** The page: both voices speak a sentence in turn; times are medians of three runs. */

import { idsOf } from "./phonemes.mjs";
import { openVoice, speak, wav } from "./speech.mjs";
import { fetched, openVoice as openStages } from "./voice.mjs";

const RUNS = 3;
const $ = (id) => document.getElementById(id);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(2)} MB`;
const seconds = (value) => `${value.toFixed(2)} s`;
const painted = () => new Promise((done) => setTimeout(done, 30));

function say(text, kind = "") {
  $("status").textContent = text;
  $("status").dataset.kind = kind;
}

const get = fetched(location.href);

/** Fetch and open a voice, and show its box. */
async function open(ort, entry) {
  const box = $("voice").content.firstElementChild.cloneNode(true);
  const show = (name, text) => (box.querySelector(`[data-of=${name}]`).textContent = text);
  box.querySelector("h2").textContent = entry.label;
  $("voices").append(box);
  const began = performance.now();
  let size = 0;
  const bytesOf = async (path, sha256) => {
    const bytes = await get(path, sha256);
    size += bytes.length;
    return bytes;
  };
  const voice = entry.stages
    ? await openStages(ort, (name, sha256) => bytesOf(`${entry.stages}/${name}`, sha256))
    : await openVoice(ort, await bytesOf(entry.file));
  show("size", megabytes(size));
  show("open", seconds((performance.now() - began) / 1000));
  if (voice.checked) show("checked", `right, on ${voice.provider}`);
  const say = entry.stages
    ? (ids, scales) => voice.speak(ids, { scales })
    : async function* (ids, scales) { yield await speak(ort, voice, ids, scales); };
  return { ...entry, say, show, bytes: size, player: box.querySelector("audio") };
}

/** Return the sound of ids, the seconds until its first part was there, and until all was. */
export async function listen(voice, ids, scales) {
  const began = performance.now();
  const parts = [];
  let first;
  for await (const part of voice.say(ids, scales)) {
    first ??= (performance.now() - began) / 1000;
    parts.push(part);
  }
  const sound = new Float32Array(parts.reduce((length, part) => length + part.length, 0));
  parts.reduce((at, part) => (sound.set(part, at), at + part.length), 0);
  return { sound, first, all: (performance.now() - began) / 1000 };
}

/** Speak the same ids with all voices in turn; return seconds for a second of speech, by voice. */
async function compare(voices, ids, page) {
  const runs = voices.map(() => []);
  for (let run = 0; run < RUNS; run++) {
    for (const [index, voice] of voices.entries()) {
      say(`${voice.label} speaks, ${run + 1} of ${RUNS} …`);
      await painted();
      runs[index].push(await listen(voice, ids, page.scales));
    }
  }
  return voices.map((voice, index) => {
    const middle = (of) => runs[index].map((run) => run[of]).toSorted((a, b) => a - b)[RUNS >> 1];
    const [spent, { sound }] = [middle("all"), runs[index].at(-1)];
    const length = sound.length / page.sampleRate;
    voice.show("first", seconds(middle("first")));
    voice.show("time", seconds(spent));
    voice.show("rate", seconds(length / spent));
    const file = new Blob([wav(sound, page.sampleRate)], { type: "audio/wav" });
    URL.revokeObjectURL(voice.player.src);
    voice.player.src = URL.createObjectURL(file);
    return spent / length;
  });
}

async function phonemizer(page) {
  if (!page.typed) return null;
  const { phonemize } = await import("./phonemizer.js");
  $("typed").disabled = false;
  $("typed").placeholder = "type here";
  return phonemize;
}

async function start() {
  if (typeof WebAssembly === "undefined") throw new Error("this browser has no WebAssembly");
  say("loading onnxruntime-web …");
  const ort = await import("./ort/ort.wasm.min.mjs");
  const page = JSON.parse(new TextDecoder().decode(await get("page.json")));
  const phonemize = await phonemizer(page);
  for (const { text } of page.sentences) $("sentence").append(new Option(text));
  const voices = [];
  for (const entry of page.voices) {
    say(`fetching ${entry.label} …`);
    voices.push(await open(ort, entry));
    await listen(voices.at(-1), page.sentences[0].ids.slice(0, 9), page.scales);
  }
  const go = async () => {
    $("speak").disabled = true;
    try {
      const typed = $("typed").value.trim();
      const chosen = page.sentences[$("sentence").selectedIndex];
      const ids = typed ? await idsOf(typed, phonemize, page) : chosen.ids;
      const [before, after] = await compare(voices, ids, page);
      const smaller = (voices[0].bytes / voices[1].bytes).toFixed(1);
      const faster = (before / after).toFixed(2);
      $("summary").textContent =
        `${voices[1].label} is ${smaller} times smaller and here ${faster} times as fast. ` +
        `Both draw noise of their own, so they differ a little every time.`;
      say("done");
    } catch (error) {
      say(`cannot speak: ${error.message}`, "error");
    }
    $("speak").disabled = false;
  };
  $("form").addEventListener("submit", (event) => (event.preventDefault(), go()));
  $("speak").disabled = false;
  Object.assign(globalThis, { page, voices, listen }); // for the console
  say("ready");
  if (location.hash === "#speak") await go();
}

start().catch((error) => say(`cannot start: ${error.message}`, "error"));
