"""The contract of an exported GPT-SoVITS, and the lexicon by which it reads English."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tts_compress.reading import read_text

_LANGUAGES = {"en": "en-us", "ja": "ja", "ko": "ko", "zh": "cmn", "yue": "yue"}
"""Languages by espeak-ng's names, which contracts have."""

_TOKENS, _LEXICON = "tokens.txt", "lexicon.txt"

_SPELLED = f"""source = "lexicon"
vocabulary = "{_TOKENS}"
lexicon = "{_LEXICON}"
endings = ".!?,…-"
replace = {{ ";" = ",", ":" = "," }}"""

_CONTRACT = """version = 1
name = "gpt-sovits"
summary = "GPT-SoVITS {version}"
sample_rate = {rate}
{language}
[tokens]
{tokens}

[input.phones]
role = "tokens"

[input.bert]                    # zeros but for Chinese
role = "constant"
value = 0
shape = [1, 1024, "tokens"]

[input.prompt_phones]           # of the recording's text, with their features in prompt.npz
role = "constant"
value = {phones}

[input.prompt_bert]
role = "style"
file = "prompt.npz"

[input.recording]
role = "recording"
rate = {rate}
longest_s = 10

[input.recording_16k]
role = "recording"
rate = 16000
longest_s = 10

[until.speech]
output = "token"
token = {end}
longest = {longest}

[size.prompt]
output = "prompt"
axis = 1

[[then]]
graph = "prefill.onnx"

[then.sample.token]
{sample}

[then.input.text]
role = "output"

[then.input.prompt]
role = "output"

[[then]]
graph = "step.onnx"
loop = "speech"

[then.sample.token]
{sample}

[then.input.token]
role = "output"

[then.input.length]
role = "lengths"
size = "prompt"

[then.input.step]
role = "step"

[then.input."past_*"]
role = "state"
output = "present_*"

[[then]]
graph = "decoder.onnx"

[then.input.phones]
role = "tokens"

[then.input.codes]
role = "output"
output = "token"
join = 1

[then.input.style]
role = "output"
"""

_STEPS_PER_SECOND = 50
_MOST_STEPS = 1_499
"""Upstream's counts, by which it ends speech that does not end itself."""

_DICTIONARIES = (("engdict-hot.rep", 0), ("cmudict.rep", 56), ("cmudict-fast.rep", 0))
"""Upstream's files of English words, the first of which counts, and lines of their heads."""

_MOST_BYTES = 1 << 26


def contract_text(voice: Any, phones: Sequence[int], *, is_spelled: bool) -> str:
    """Return the contract of a voice.

    Args:
        voice: A `GptSovitsModel`.
        phones: Phonemes of its recording's text.
        is_spelled: There is a lexicon; else texts are ids.
    """
    t2s, options = voice.loaded.settings.t2s, voice.options
    end = t2s["model"]["EOS"]
    draw = {
        "logits": "logits",
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "repetition_penalty": options.repetition_penalty,
        "after": "prompt",
        "greedy": end,
    }
    language = _LANGUAGES.get(options.text_lang.removeprefix("all_"))
    steps = min(_STEPS_PER_SECOND * int(t2s["data"]["max_sec"]), _MOST_STEPS)
    return _CONTRACT.format(
        version=voice.version,
        rate=voice.sample_rate,
        language=f'language = "{language}"\n' if language else "",
        tokens=_SPELLED if is_spelled else 'source = "ids"',
        phones=list(phones),
        end=end,
        longest=steps - 1,  # one more is drawn before the loop
        sample="\n".join(f"{name} = {json.dumps(value)}" for name, value in draw.items()),
    )


def write_lexicon(voice: Any, directory: Path) -> bool:
    """Write the words that upstream's English frontend looks up; return False of other languages.

    Its rules for numbers, homographs and words that are in no dictionary are not there.
    """
    if voice.options.text_lang != "en":
        return False
    checkout = voice.loaded.official.checkout
    list_of_symbols = checkout.load("text.symbols" if voice.version == "v1" else "text.symbols2")
    ids = {symbol: number for number, symbol in enumerate(list_of_symbols.symbols)}
    words: dict[str, list[str]] = {}
    for word, phones in _words(checkout.root / "GPT_SoVITS/text"):
        words.setdefault(word, [phone for phone in phones if phone in ids])
    used = {phone for phones in words.values() for phone in phones}
    used.update(list_of_symbols.punctuation)
    lines = {
        _TOKENS: [f"{symbol} {ids[symbol]}" for symbol in sorted(used)],
        _LEXICON: [f"{word} {' '.join(phones)}" for word, phones in words.items() if phones],
    }
    for name, content in lines.items():
        (directory / name).write_text("\n".join([*content, ""]), encoding="utf-8")
    return True


def _words(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield English words and their phonemes."""
    for name, head in _DICTIONARIES:
        for line in read_text(folder / name, _MOST_BYTES).splitlines()[head:]:
            word, *phones = line.split() or [""]
            if word[:1].isalpha():
                yield word.lower(), phones
