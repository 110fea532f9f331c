/** Phoneme ids of a typed text, as Piper makes them of espeak-ng's phonemes. */

const BEGIN = "^";
const PAD = "_";
const END = "$";
const CLAUSE = /([^,;:.!?]*(?:[,;:.!?](?!\s|$)[^,;:.!?]*)*)([,;:.!?]*)\s*/g;

/**
 * @param phonemize function of a text and a language that resolves to lists of phonemes
 * @param voice `{language, symbols}` with the ids of each symbol
 * @returns the ids; symbols that the voice does not know are left out, as Piper does
 */
export async function idsOf(text, phonemize, voice) {
  if (!/[\p{L}\p{N}]/u.test(text)) throw new Error("there is nothing to speak in this text");
  let phonemes = "";
  for (const [, words, marks] of text.trim().matchAll(CLAUSE)) {
    if (!words.trim()) continue;
    const spoken = (await phonemize(words, voice.language)).join(" ");
    phonemes += (phonemes && " ") + spoken + marks.slice(0, 1);
  }
  const known = [...phonemes.normalize("NFD")].filter((symbol) => symbol in voice.symbols);
  const padded = [BEGIN, PAD, ...known.flatMap((symbol) => [symbol, PAD]), END];
  return padded.flatMap((symbol) => voice.symbols[symbol]);
}
