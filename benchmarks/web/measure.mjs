/** What onnxruntime-web makes of voices: their sound for given inputs, and how long they speak. */

import { openVoice, speak } from "../../examples/web/speech.mjs";

/**
 * Measure the voices of a plan, in turns.
 * @param load function from the name of a file beside the plan to its bytes
 * @returns plain data; sounds are float32 samples in base64, times in seconds
 */
export async function measure(ort, load, plan) {
  const voices = {};
  for (const name of plan.voices) {
    const bytes = await load(`${name}.onnx`);
    const began = performance.now();
    const voice = await openVoice(ort, bytes);
    voices[name] = { open_s: (performance.now() - began) / 1000, seconds: [], samples: [] };
    voices[name].session = voice;
    const fed = await openVoice(ort, await load(`${name}.fed.onnx`));
    const output = await fed.run(tensors(ort, plan.feeds));
    voices[name].sound = base64(output[fed.outputNames[0]].data);
    await fed.release();
  }
  for (let round = -1; round < plan.rounds; round++) {
    for (const name of plan.voices) {
      const began = performance.now();
      const samples = await speak(ort, voices[name].session, plan.ids, plan.scales);
      if (round < 0) continue; // the first one also allocates
      voices[name].seconds.push((performance.now() - began) / 1000);
      voices[name].samples.push(samples.length);
    }
  }
  for (const name of plan.voices) delete voices[name].session;
  return { version: ort.env.versions.web, voices };
}

function tensors(ort, feeds) {
  return Object.fromEntries(
    Object.entries(feeds).map(([name, { type, dims, data }]) => {
      const values = type === "int64" ? BigInt64Array.from(data, BigInt) : Float32Array.from(data);
      return [name, new ort.Tensor(type, values, dims)];
    }),
  );
}

function base64(samples) {
  const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
