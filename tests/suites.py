"""The file of a suite of few texts."""

from collections.abc import Iterable


def suite_text(
    texts: Iterable[str],
    *,
    name: str = "small",
    language: str = "en-us",
    recognizer: str = "pocketsphinx",
    normalizer: str = "en-v1",
    seeds: str = "[0]",
    more: str = "",
) -> str:
    """Return the content of a file, with more tables in front of its card."""
    stated = ", ".join(f'{{ text = "{text}" }}' for text in texts)
    return f"""
version = 1
name = "{name}"
language = "{language}"
recognizer = "{recognizer}"
normalizer = "{normalizer}"
seeds = {seeds}
utterances = [{stated}]
{more}
[card]
summary = "a"
source = "b"
licence = "c"
composition = "d"
"""
