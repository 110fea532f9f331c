"""espeak-ng in its own process: texts that end it, and the state it is left in."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tts_compress.errors import ModelError, TextError
from tts_compress.models.base import GraphModel
from tts_compress.models.contract.piper_file import PiperFile
from tts_compress.models.espeak import Espeak, espeak

pytest.importorskip("piper")


@pytest.mark.slow
def test_a_text_that_ends_espeak_is_a_text_error(tiny: GraphModel) -> None:
    """It was a segmentation fault of this very process, without a message.

    espeak-ng writes past a buffer: in one run of thirty it gets away with it.
    """
    before, ended = tiny.synthesize("Hello there.", seed=0), 0
    for text in ["a." * 500, "U.S.A." * 80, "a.b.c. " * 100]:
        try:
            tiny.synthesize(text, seed=0)
        except TextError as error:
            ended += f"espeak-ng breaks down over '{text[:2]}" in str(error)
        after = tiny.synthesize("Hello there.", seed=0)
        np.testing.assert_array_equal(before.samples, after.samples)
    assert ended


def test_espeak_that_was_killed_is_started_again() -> None:
    speller = Espeak()
    expected = speller.phonemes("en-us", "Hello.")
    assert expected[0][0] == "h"
    assert speller._child is not None
    os.kill(speller._child._process.pid, signal.SIGKILL)
    assert speller.phonemes("en-us", "Hello.") == expected


def test_threads_get_the_phonemes_of_their_own_texts() -> None:
    texts = [f"Number {n}, and {n * 7}." for n in range(64)]
    expected = [espeak().phonemes("en-us", text) for text in texts]
    with ThreadPoolExecutor(16) as threads:
        assert [*threads.map(lambda text: espeak().phonemes("en-us", text), texts)] == expected


def test_a_fork_has_an_espeak_of_its_own() -> None:
    """Two processes at the ends of one pipe would read each other's responses."""
    expected = espeak().phonemes("en-us", "Hello.")
    if not (number := os.fork()):
        same = espeak().phonemes("en-us", "Hello.") == expected
        os._exit(0 if same and espeak()._owner == os.getpid() else 1)
    assert os.waitpid(number, 0)[1] == 0


def test_ids_are_those_of_piper_itself(demo: Path) -> None:
    voice = pytest.importorskip("piper").PiperVoice.load(demo)
    text = "Dr. Smith paid $3.50. [[ həlˈoʊ ]] there: U.S.A.!"
    expected = [voice.phonemes_to_ids(sentence) for sentence in voice.phonemize(text)]
    config = PiperFile(demo.with_name(f"{demo.name}.json"))
    assert config.sentences(text, longest=2_000) == expected


def test_a_language_that_espeak_does_not_know_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="cannot speak 'xx-none'"):
        espeak().phonemes("xx-none", "Hello.")
