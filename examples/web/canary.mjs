/** The canary of a voice: whether a runtime makes the sound that every right one makes. */

/**
 * Return how far the levels of a sound are from those stored with the voice, root mean square in
 * dB; NaN where the sound has numbers that are none.
 */
export function distance(canary, samples) {
  const { size, hop, edges, levels_db: levels, floor_db: floor } = canary;
  if (Math.abs(samples.length - canary.samples) > 0.02 * canary.samples) return Infinity;
  const turn = Array.from({ length: size }, (_, n) => (2 * Math.PI * n) / size);
  const [cosine, sine] = [turn.map(Math.cos), turn.map(Math.sin)];
  let sum = 0;
  levels.forEach((frame, number) => {
    const begin = canary.at + number * hop;
    const wave = turn.map((_, n) => (samples[begin + n] ?? 0) * (0.5 - 0.5 * cosine[n]));
    frame.forEach((level, band) => {
      let power = 0;
      for (let bin = edges[band]; bin < edges[band + 1]; bin++) {
        let [real, imaginary] = [0, 0];
        for (let n = 0, at = 0; n < size; n++, at = (at + bin) % size) {
          real += wave[n] * cosine[at];
          imaginary += wave[n] * sine[at];
        }
        power += (real * real + imaginary * imaginary) / (size * size);
      }
      const heard = Math.max(floor, 10 * Math.log10(power + 1e-12));
      sum += (heard - level) ** 2 / (levels.length * frame.length);
    });
  });
  return Math.sqrt(sum);
}

/** Return why a voice's sound is not to be trusted here, or null. */
export async function problem(canary, speak) {
  if (!canary) return null;
  const parts = [];
  for await (const part of speak(canary.ids, canary.inputs)) parts.push(...part);
  const apart = distance(canary, parts);
  if (apart <= canary.tolerance_db) return null;
  return `its sound is ${apart.toFixed(1)} dB from what it should be`;
}
