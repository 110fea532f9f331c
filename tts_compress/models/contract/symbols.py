"""Tokens of texts: ids, characters, words of a lexicon, word pieces, or espeak-ng's phonemes."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tts_compress.config import IDS
from tts_compress.errors import ModelError, TextError, model_errors, needing, raising
from tts_compress.models.base import check_encodable, check_text
from tts_compress.models.contract.piper_file import PiperFile
from tts_compress.models.contract.schema import MOST_ID, Tokens
from tts_compress.models.contract.styles import Folders, find_file
from tts_compress.models.espeak import espeak
from tts_compress.models.files import read_json
from tts_compress.reading import read_text

MOST_CHARACTERS = 1_000_000
"""Longest text behind the contract's replacements."""

_SPACE = re.compile(r"\s+")
_SPACE_BEFORE_MARK = re.compile(r" ([,.!?;:'])")


def normalize(text: str, tokens: Tokens) -> str:
    """Return a text in the form that a contract states, without what is put around it."""
    if tokens.normalize is not None:
        text = unicodedata.normalize(tokens.normalize, text)
    for old, new in tokens.replace.items():
        # Counted before it is made: each of some thirty rules can double a text.
        if len(text) + text.count(old) * len(new) > MOST_CHARACTERS:
            raise TextError(
                f"the contract's replacement of {old!r:.40} makes a text of more than "
                f"{MOST_CHARACTERS:,} characters; give a shorter text, or change [tokens.replace]"
            )
        text = text.replace(old, new)
    if tokens.tidy:
        text = _SPACE.sub(" ", _SPACE_BEFORE_MARK.sub(r"\1", text)).strip()
    if tokens.endings and not text.endswith(tuple(tokens.endings)):
        text += tokens.endings[0]
    return text.lower() if tokens.lowercase else text


_MOST_BYTES = 1 << 27
_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*|[^\w\s]")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_DIGITS = re.compile(r"\d{1,9}")
_SYMBOL = re.compile(r"(?:(.*)[ \t])?\s*(\d{1,9})\s*")
_ID = re.compile(r"(\d{1,9})(?:/(\d{1,9}))?")
_CHARACTERS = 0x110000
"""Characters that Unicode has room for."""

_LONGEST_WORD = 12
"""Characters of the longest word that is looked for in writing without spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The symbols of one call: ids, and tones where the lexicon states them."""

    ids: tuple[int, ...]
    tones: tuple[int, ...]
    """As many as `ids`; zeros where nothing states them."""

    characters: int
    """Length of the whole text."""


Source: TypeAlias = Callable[[str], Iterator[Symbols]]
"""Turns a text into the symbols of each part of it that is spoken at once."""


def spell_characters(
    text: str,
    vocabulary: Mapping[str, int],
    *,
    spaced: bool = False,
    around: tuple[str, ...] = (),
) -> Iterator[Symbols]:
    """Yield the ids of a text's characters; those without an id are left out, as systems do.

    Args:
        text: The text.
        vocabulary: Ids by character.
        spaced: True to put one space between words and marks.
        around: What is put before and behind a text that has any.
    """
    if spaced:
        text = " ".join(_WORD_OR_MARK.findall(text))
    if not any(character in vocabulary for character in text):
        return
    text = text.join(around or ("", ""))
    yield _symbols(((vocabulary[c], 0) for c in text if c in vocabulary), len(text))


_Words: TypeAlias = Mapping[str, tuple[tuple[int, int], ...]]
"""Ids and tones by word."""


def _spell_words(text: str, words: _Words) -> Iterator[Symbols]:
    """Yield the ids of a lexicon's words; of writing without spaces the longest ones there are.

    Words and marks that are neither in the file nor symbols are left out, as sherpa-onnx does. A
    space is spelled as the vocabulary has it.
    """
    spelled = list[tuple[int, int]]()
    for part in text.lower().split():
        pairs = [pair for word in _WORD.findall(part) for pair in _ids_of_word(word, words)]
        spelled += [*(words.get(" ", ()) if spelled and pairs else ()), *pairs]
    yield _symbols(spelled, len(text))


def _ids_of_word(word: str, words: _Words) -> Iterator[tuple[int, int]]:
    if word in words or word.isascii():
        for part in [word] if word in words else re.split("(-)", word):
            yield from words.get(part, ())
        return
    start = 0
    while start < len(word):
        lengths = range(min(_LONGEST_WORD, len(word) - start), 0, -1)
        length = next((n for n in lengths if word[start : start + n] in words), 0)
        yield from words[word[start : start + length]] if length else ()
        start += max(length, 1)


def _open_pieces(path: Path) -> Source:
    """Return what yields the word pieces of a model of SentencePiece, read as it stands."""
    with needing("transformers-tts"):
        from sentencepiece import SentencePieceProcessor
    with model_errors(f"'{path}' is no model of SentencePiece"):
        encode = SentencePieceProcessor(model_file=str(path)).encode
    return lambda text: iter([_symbols(((number, 0) for number in encode(text)), len(text))])


def _spell_phonemes(
    text: str, vocabulary: Mapping[str, int], language: str, *, spaced: bool
) -> Iterator[Symbols]:
    """Yield the ids of espeak-ng's phonemes of each sentence, by piper's binding."""
    for sentence in espeak().phonemes(language, text):
        phonemes = "".join(_apart("".join(sentence), vocabulary))
        for symbols in spell_characters(phonemes, vocabulary, spaced=spaced):
            yield replace(symbols, characters=len(text))


def _apart(phonemes: str, vocabulary: Mapping[str, int]) -> Iterator[str]:
    """Yield phonemes, with marks apart from letters where the vocabulary has both.

    Piper and icefall train on `c` and a cedilla, Kokoro on `ç`.
    """
    for character in unicodedata.normalize("NFC", phonemes):
        parts = unicodedata.normalize("NFD", character)
        is_apart = character not in vocabulary or all(part in vocabulary for part in parts)
        yield parts if is_apart else character


class Speller:
    """Turns texts into the symbols of each call."""

    def __init__(
        self, tokens: Tokens, language: str | None, folders: Folders, config: PiperFile | None
    ) -> None:
        self._tokens = tokens
        self._language = language
        self._folders = folders
        self._config = config
        self._source: Source | None = None

    def calls(self, text: str) -> list[Symbols]:
        """Return the symbols of each call that speaks a text."""
        check_encodable(text)
        if self._tokens.source == "piper":
            assert self._config is not None, "its contract is read with it"
            sentences = self._config.sentences(text, self._tokens.longest)
            return [
                _symbols(((identifier, 0) for identifier in ids), len(text)) for ids in sentences
            ]
        plain = text.strip()
        if self._tokens.source == "ids" or plain.startswith(IDS):
            batches = [_read_ids(plain)]
        else:
            check_text(text)
            self._source = self._source or self._open_source()
            source = self._source(normalize(plain, self._tokens))
            batches = [symbols for symbols in source if symbols.ids]
        if not batches:
            raise TextError(f"nothing in {text[:40]!r} is in the voice's vocabulary")
        if (longest := max(len(symbols.ids) for symbols in batches)) > self._tokens.longest:
            raise TextError(
                f"{text[:40]!r}… has {longest} symbols at once; at most {self._tokens.longest} are "
                "accepted: give a shorter text"
            )
        return batches

    def framed(self, values: Iterable[int], *, tones: bool = False) -> list[int]:
        """Return symbols with blanks and edges; tones have zeros there."""
        tokens = self._tokens
        bos, eos = (_ids(edge) if tokens.edges else () for edge in (tokens.bos, tokens.eos))
        if tones:
            bos, eos = (0,) * len(bos), (0,) * len(eos)
        blank = 0 if tones else tokens.blank
        if tokens.blanks and tokens.blanks_around_edges:
            return _blanked([*bos, *values, *eos], blank)
        return [*bos, *(_blanked(values, blank) if tokens.blanks else values), *eos]

    def _open_source(self) -> Source:
        tokens = self._tokens
        assert tokens.vocabulary is not None, "the schema asks for one"
        if tokens.source == "pieces":
            return _open_pieces(find_file(str(tokens.vocabulary), self._folders))
        if isinstance(tokens.vocabulary, dict):
            vocabulary = {
                symbol: int(first) + index
                for first, symbols in tokens.vocabulary.items()
                for index, symbol in enumerate(symbols)
            }
        else:
            vocabulary = read_vocabulary(find_file(tokens.vocabulary, self._folders))
        if tokens.source == "lexicon":
            assert tokens.lexicon is not None, "the schema asks for one"
            words = read_lexicon(find_file(tokens.lexicon, self._folders), vocabulary)
            return partial(_spell_words, words=words)
        settings: Any = {"vocabulary": vocabulary, "spaced": tokens.spaced}
        if tokens.source == "espeak":
            return partial(_spell_phonemes, language=self._language or "", **settings)
        return partial(spell_characters, around=tokens.around, **settings)


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return the ids of symbols: of lines `symbol id`, or of a `.json`.

    A line of an id alone is the space's, as in files of icefall and sherpa-onnx. A list holds the
    id of each character by its number in Unicode, -1 for those without one, as Supertonic's does.
    """
    if path.suffix == ".json":
        content = read_json(path)
        if isinstance(content, list) and content and all(i == -1 or _is_id(i) for i in content):
            return {chr(n): i for n, i in enumerate(content[:_CHARACTERS]) if i >= 0}
        table = content.get("vocab", content) if isinstance(content, dict) else None
        if not isinstance(table, dict) or not all(map(_is_id, table.values())):
            raise ModelError(
                f"'{path}' holds no table of symbols and their ids, which are 0 to {MOST_ID}"
            )
        return dict(table)
    vocabulary = {}
    for number, line in enumerate(_lines(path), 1):
        parts = _SYMBOL.fullmatch(line)
        if parts is None:
            raise ModelError(f"'{path}', line {number}: {line[:40]!r} is no 'symbol id'")
        vocabulary[(parts[1] or "").strip(" \t") or " "] = int(parts[2])
    return vocabulary


def read_lexicon(
    path: Path, vocabulary: Mapping[str, int]
) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return ids and tones by word; of a word that is there twice the first.

    Symbols of the vocabulary, such as punctuation, are words too.
    """
    words: dict[str, tuple[tuple[int, int], ...]] = {}
    for number, line in enumerate(_lines(path), 1):
        word, *symbols = line.split()
        half = len(symbols) // 2
        ids, tones, last = symbols, ["0"] * len(symbols), symbols[half:]
        # Symbols, then as many tones: digits are tones where they are no symbols.
        is_toned = len(symbols) == 2 * half and not {*last} <= vocabulary.keys()
        if is_toned and all(map(_DIGITS.fullmatch, last)):
            ids, tones = symbols[:half], last
        if missing := [symbol for symbol in ids if symbol not in vocabulary]:
            raise ModelError(
                f"'{path}', line {number}: symbol {missing[0]!r:.40} of {word!r:.40} has no id"
            )
        pairs = zip((vocabulary[s] for s in ids), map(int, tones), strict=True)
        words.setdefault(word.lower(), tuple(pairs))
    return {symbol: ((identifier, 0),) for symbol, identifier in vocabulary.items()} | words


def _lines(path: Path) -> Iterator[str]:
    with raising(ModelError, f"cannot read '{path}'"):
        lines = read_text(path, _MOST_BYTES).split("\n")
    yield from (line.rstrip("\r") for line in lines if line.strip())


def _read_ids(text: str) -> Symbols:
    """Return the symbols of `ids: 5 12/1 7`; a tone follows its id behind a slash."""
    pairs = []
    for word in text.removeprefix(IDS).split():
        parts = _ID.fullmatch(word)
        if parts is None:
            raise TextError(
                f"{word[:40]!r} is no id of a token; this text is written as ids: '{IDS} 5 12 7'"
            )
        pairs.append((int(parts[1]), int(parts[2] or 0)))
    if not pairs:
        raise TextError(f"no ids in {text[:40]!r}; write '{IDS} 5 12 7'")
    return _symbols(pairs, len(pairs))


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_ID


def _blanked(values: Iterable[int], blank: int) -> list[int]:
    return [blank, *(part for value in values for part in (value, blank))]


def _ids(stated: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if stated is None:
        return ()
    return (stated,) if isinstance(stated, int) else stated


def _symbols(pairs: Iterable[tuple[int, int]], characters: int) -> Symbols:
    listed = list(pairs)
    return Symbols(
        ids=tuple(identifier for identifier, _ in listed),
        tones=tuple(tone for _, tone in listed),
        characters=characters,
    )
