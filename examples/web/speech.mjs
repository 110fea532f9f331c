/** Piper voices in onnxruntime-web: opened, spoken, and made a WAV file. Needs no browser. */

/** One thread in WebAssembly: pages need special headers for more. */
export const SESSION = {
  executionProviders: ["wasm"],
  intraOpNumThreads: 1,
  logSeverityLevel: 3,
  enableMemPattern: false, // its plan for a second call would keep a second set of buffers
};

/** Open a voice from the bytes of its `.onnx` file. */
export function openVoice(ort, bytes) {
  ort.env.wasm.numThreads = 1;
  return ort.InferenceSession.create(bytes, SESSION);
}

/**
 * Speak phoneme ids.
 * @param scales noise, length and noise of durations, as in the voice's `.onnx.json`
 * @returns mono samples in [-1, 1] as a Float32Array
 */
export async function speak(ort, voice, ids, scales) {
  const output = await voice.run({
    input: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]),
    input_lengths: new ort.Tensor("int64", BigInt64Array.of(BigInt(ids.length)), [1]),
    scales: new ort.Tensor("float32", Float32Array.from(scales), [3]),
  });
  return output[voice.outputNames[0]].data;
}

/** Return the bytes of a WAV file of 16 bits. */
export function wav(samples, sampleRate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, value) => [...value].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // mono
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, 2 * sampleRate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, i) => {
    const clipped = Math.max(-1, Math.min(1, value));
    view.setInt16(44 + 2 * i, Math.round(32767 * clipped), true);
  });
  return new Uint8Array(view.buffer);
}
