/**
 * A voice that `tts-compress export --web` wrote: fetched once, tried with each provider until one
 * makes the right sound, and heard before all of it is there.
 */

import { problem } from "./canary.mjs";
import { openStages, speakStages } from "./stream.mjs";

/** Return a function that gets a file of a folder, from the browser's cache where it is there. */
export function fetched(base) {
  return async (name, sha256) => {
    const url = new URL(name, base);
    const key = new URL(`?sha256=${sha256}`, url); // another file of that name is another entry
    const store = sha256 && globalThis.caches ? await caches.open("tts-compress").catch(() => null) : null;
    const kept = await store?.match(key);
    if (kept) return new Uint8Array(await kept.arrayBuffer());
    // The browser's own cache may hold an earlier file of that name.
    const response = await fetch(url, { cache: "no-cache" }).catch(() => null);
    if (!response?.ok) {
      const reason = response ? `the server answered ${response.status}` : "the server is gone";
      throw new Error(`${url.pathname.slice(1)} cannot be fetched: ${reason}`);
    }
    const bytes = new Uint8Array(await response.arrayBuffer());
    if (sha256 && ((await digest(bytes)) ?? sha256) !== sha256) {
      throw new Error(`${url.pathname.slice(1)} is not the file that is wanted: its SHA-256 is another`);
    }
    if (store) await replace(store, url, key, bytes).catch(() => null); // a full disk is no error
    return bytes;
  };
}

/** Return the SHA-256 of bytes; undefined where a page may not compute it, which is without HTTPS. */
async function digest(bytes) {
  const hash = await globalThis.crypto?.subtle?.digest("SHA-256", bytes);
  return hash && Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Keep a file, and no earlier one of its URL. */
async function replace(store, url, key, bytes) {
  for (const old of await store.keys(url, { ignoreSearch: true })) await store.delete(old);
  await store.put(key, new Response(bytes));
}

/**
 * Open a voice with the first provider that makes the right sound.
 * @param ort onnxruntime-web; its build for WebGPU where that is among the providers
 * @param source the URL of the folder with `stream.json`, or a function of a file's name that returns its bytes
 * @param providers names for onnxruntime, the preferred one first
 * @returns `{ sampleRate, provider, left, checked, speak }`, where `left` names the providers that failed, with the
 *   reason, `checked` is false for a voice without a sound to compare, and `speak(ids, inputs)` yields chunks of mono samples in [-1, 1], each a Float32Array; `inputs` are numbers in
 *   place of the usual ones, by the input's name, of a style also the name of a voice
 */
export async function openVoice(ort, source, { providers = ["wasm"] } = {}) {
  const get = typeof source === "function" ? source : fetched(new URL(source, globalThis.location?.href));
  const config = JSON.parse(new TextDecoder().decode(await get("stream.json")));
  const left = [];
  for (const provider of providers) {
    const sessions = [];
    try {
      const voice = await openStages(ort, config, (name) => get(name, config.sha256[name]), provider, sessions);
      const speak = async function* (ids, inputs = {}) {
        yield* speakStages(ort, voice, ids, { ...inputs, ...(await styleRows(config, get, ids, inputs)) });
      };
      const reason = await problem(config.canary, speak);
      if (reason) throw new Error(reason);
      return { sampleRate: config.sample_rate, provider, left, checked: Boolean(config.canary), speak };
    } catch (error) {
      left.push({ provider, reason: error.message });
      await Promise.allSettled(sessions.map((session) => session.release()));
    }
  }
  throw new Error(left.map(({ provider, reason }) => `${provider}: ${reason}`).join("; "));
}

/** Return the row of the style file of each voice that is named, or of the usual one; numbers are left as they are. */
async function styleRows(config, get, ids, inputs) {
  const rows = {};
  for (const [name, { usual, files, row }] of Object.entries(config.styles ?? {})) {
    const wanted = inputs[name] ?? usual;
    const counted = row && (row.of === "ids" ? ids.length : inputs[row.of]);
    if (typeof wanted !== "string" || (counted === undefined && !(name in inputs))) continue;
    if (counted === undefined) throw new Error(`its style follows from the number of ${row.of}: give it as an input`);
    if (!files[wanted]) throw new Error(`there is no voice '${wanted}': ${Object.keys(files).join(", ")}`);
    const bytes = await get(files[wanted], config.sha256[files[wanted]]);
    const table = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
    const [given] = config.inputs[name];
    const size = [given].flat(Infinity).length;
    const number = row ? Math.round((counted - row.minus) / row.per) : 0;
    const at = size * Math.max(0, Math.min(number, table.length / size - 1));
    rows[name] = filled(given, table.subarray(at, at + size).values());
  }
  return rows;
}

/** Return nested arrays of the shape of others, with numbers in turn. */
const filled = (like, numbers) =>
  Array.isArray(like) ? like.map((inner) => filled(inner, numbers)) : numbers.next().value;

/** Open a voice in a worker, so that the page stays quick while it speaks; arguments as above, by URLs. */
export async function openInWorker(runtime, folder, options = {}) {
  const worker = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module" });
  const absolute = (url) => new URL(url, location.href).href;
  const requests = new Map(); // those that are not done: their answers, and how to wake who waits
  let [last, closed] = [0, false];
  const tell = (answer) => {
    const request = requests.get(answer.id);
    request?.answers.push(answer);
    request?.wake();
  };
  const fail = (error) => [...requests.keys()].forEach((id) => tell({ id, error }));
  worker.onmessage = ({ data }) => tell(data);
  worker.onerror = ({ message }) => fail(message || "it cannot be loaded");
  /** Ask for something; yield what it answers until that is null. */
  async function* ask(message) {
    if (closed) throw new Error("the voice is closed");
    const id = ++last;
    const request = { answers: [], wake: () => {} };
    requests.set(id, request);
    try {
      worker.postMessage({ id, ...message });
      for (;;) {
        while (!request.answers.length) await new Promise((done) => (request.wake = done));
        const answer = request.answers.shift();
        if (answer.error) throw new Error(answer.error);
        if (!answer.part) return;
        yield answer.part;
      }
    } finally {
      requests.delete(id);
      worker.postMessage({ stop: id });
    }
  }
  const close = () => {
    closed = true;
    worker.terminate();
    fail("the voice is closed");
  };
  const opened = await ask({ open: [absolute(runtime), absolute(folder), options] }).next().catch((error) => {
    worker.terminate();
    throw error;
  });
  return { ...opened.value, speak: (ids, inputs) => ask({ speak: [ids, inputs] }), close };
}
