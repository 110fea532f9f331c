/** The worker of `openInWorker`: opens a voice, then speaks what it is asked for. */

import { openVoice } from "./voice.mjs";

let [voice, stopped, turn] = [null, 0, Promise.resolve()];

onmessage = ({ data }) => {
  if (data.stop) stopped = Math.max(stopped, data.stop);
  else turn = turn.then(() => answer(data)); // one after the other
};

async function answer({ id, open, speak }) {
  try {
    if (open) {
      const [runtime, folder, options] = open;
      voice = await openVoice(await import(runtime), folder, options);
      const { speak: _, ...opened } = voice;
      postMessage({ id, part: opened });
    } else {
      for await (const part of voice.speak(...speak)) {
        postMessage({ id, part });
        await new Promise((done) => setTimeout(done)); // lets `stop` in
        if (stopped >= id) break;
      }
    }
    postMessage({ id, part: null });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
}
