/** A voice in stages (`tts-compress export --stream`) in onnxruntime-web: heard before all is there. */

import { SESSION } from "./speech.mjs";

/** Open the stages into `sessions`; `get` returns the bytes of a file of the `stream` folder. */
export async function openStages(ort, config, get, provider = "wasm", sessions = []) {
  ort.env.wasm.numThreads = 1;
  const externalData = [{ path: "weights.bin", data: await get("weights.bin") }];
  const open = async (name) => {
    const options = { ...SESSION, executionProviders: [provider], externalData };
    sessions.push(await ort.InferenceSession.create(await get(name), options));
    return sessions.at(-1);
  };
  const encoder = await open(config.encoder);
  const stages = [];
  for (const stage of config.stages) stages.push({ ...stage, session: await open(stage.graph) });
  return { config, encoder, stages, sessions };
}

/**
 * Yield the sound of phoneme ids in chunks, each a Float32Array in [-1, 1].
 * @param inputs numbers for other inputs than the voice's usual ones, by the input's name
 */
export async function* speakStages(ort, voice, ids, inputs = {}) {
  const { config, stages } = voice;
  const feeds = {};
  for (const [name, [usual, type]] of Object.entries(config.inputs)) {
    const known = { ids: [ids], length: [ids.length] };
    const value = inputs[name] ?? (typeof usual === "string" ? known[usual] : usual);
    feeds[name] = new ort.Tensor(type, [value].flat(Infinity), shape(value));
  }
  const made = { ...feeds, ...(await voice.encoder.run(feeds)) };
  if (!stages.length) {
    yield made[config.output].data;
    return;
  }
  const kept = [made[stages[0].reads[0]], ...stages.map(() => null)];
  const begins = stages.map(() => 0);
  const done = stages.map(() => 0);
  const sizes = [kept[0].dims[stages[0].axis]];
  for (const { hop, extra } of stages) sizes.push(sizes.at(-1) * hop + extra);
  const hop = stages.reduce((product, stage) => product * stage.hop, 1);

  async function advance(number, end) {
    const { axis, to, before, after, least, multiple, hop, session, ...stage } = stages[number];
    const [size, from] = [sizes[number], done[number]];
    const whole = end >= sizes[number + 1] || size < least;
    let until = whole ? size : Math.min(size, Math.ceil(end / hop));
    if (until <= from) return;
    if (from) until = Math.min(size, from + (until - from) * stage.ahead);
    const last = Math.min(size, until + after);
    if (number) await advance(number - 1, last);
    let begin = Math.max(0, from - before);
    if (last === size) begin = Math.max(0, Math.min(begin, size - least));
    begin = Math.ceil(begin / multiple) * multiple;
    const filled = Math.max(least, Math.ceil((last - begin) / multiple) * multiple);
    const width = last < size ? filled : last - begin;
    const offset = begins[number];
    const given = { [stage.reads[0]]: cut(ort, kept[number], axis, begin - offset, last - offset, width) };
    for (const side of stage.sides) given[side] = made[side];
    const output = (await session.run(given))[stage.returns[0]];
    const stop = until === size ? output.dims[to] : (until - begin) * hop;
    kept[number + 1] = join(ort, kept[number + 1], cut(ort, output, to, (from - begin) * hop, stop), to);
    done[number] = until;
    const surplus = until - Math.max(before, least) - offset;
    if (surplus > 0) {
      kept[number] = cut(ort, kept[number], axis, surplus, kept[number].dims[axis]);
      begins[number] += surplus;
    }
  }

  for (let end = 0, count = config.first_frames; end < sizes[0]; count = config.most_frames) {
    end = Math.min(sizes[0], end + count);
    await advance(stages.length - 1, end < sizes[0] ? end * hop : Infinity);
    if (kept.at(-1)) yield kept.at(-1).data;
    kept[stages.length] = null;
  }
}

/** Return the sizes of nested arrays. */
const shape = (value) => (Array.isArray(value) ? [value.length, ...shape(value[0])] : []);

/** Return a stretch of a tensor along an axis, with zeros behind it to a width. */
function cut(ort, tensor, axis, begin, end, width = end - begin) {
  const inner = tensor.dims.slice(axis + 1).reduce((product, size) => product * size, 1);
  const row = tensor.dims[axis] * inner;
  const rows = tensor.data.length / row;
  const data = new tensor.data.constructor(rows * width * inner);
  for (let i = 0; i < rows; i++) {
    data.set(tensor.data.subarray(i * row + begin * inner, i * row + end * inner), i * width * inner);
  }
  return new ort.Tensor(tensor.type, data, tensor.dims.with(axis, width));
}

/** Return two tensors side by side along an axis. */
function join(ort, left, right, axis) {
  if (!left) return right;
  const width = left.dims[axis] + right.dims[axis];
  const both = cut(ort, left, axis, 0, left.dims[axis], width);
  const inner = left.dims.slice(axis + 1).reduce((product, size) => product * size, 1);
  const [row, wide] = [right.dims[axis] * inner, width * inner];
  for (let i = 0; i * row < right.data.length; i++) {
    both.data.set(right.data.subarray(i * row, (i + 1) * row), i * wide + left.dims[axis] * inner);
  }
  return both;
}
