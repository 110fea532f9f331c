"""Speakers of a voice that has several: their names and ids, and the choice of one."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tts_compress.errors import ModelError
from tts_compress.models.base import MultiSpeaker, TTSModel

MAX_SPEAKERS = 65_536
"""Most speakers of a voice; the largest published ones have about a thousand."""

NO_SPEAKERS: Mapping[str, int] = MappingProxyType({})
"""Speakers of a model of one voice, and of one that a prompt gives its voice."""

_SHOWN = 8
"""Names that an error lists."""


def read_speakers(config: Mapping[str, Any], path: Path) -> Mapping[str, int]:
    """Return the ids of a Piper voice's speakers by name, in the order of ids.

    A voice of one has none. An id without a name is called by its number.

    Args:
        config: The voice's configuration, whose `num_speakers` was checked.
        path: Its file, for errors.

    Raises:
        ModelError: A name's id is not one of a speaker.
    """
    count = config["num_speakers"]
    if count <= 1:
        return NO_SPEAKERS
    stated = config.get("speaker_id_map") or {}
    fits = isinstance(stated, dict) and all(
        type(number) is int and 0 <= number < count for number in stated.values()
    )
    if not fits:
        raise ModelError(
            f"'{path}' is not a Piper voice's configuration: speaker_id_map: give each name an id "
            f"from 0 to {count - 1}, because num_speakers is {count}"
        )
    named = {*stated.values()}
    unnamed = {str(number): number for number in range(count) if number not in named}
    found = sorted((unnamed | stated).items(), key=lambda item: item[1])
    return MappingProxyType(dict(found))


def find_speaker(speakers: Mapping[str, int], wanted: str | int, spec: str) -> str:
    """Return the name of a speaker that is given by name or id; a name comes first.

    Args:
        speakers: Ids by name.
        wanted: A name, or an id as a number or in digits.
        spec: The model's spec, for errors.

    Raises:
        ModelError: There is no such speaker, or only one.
    """
    if not speakers:
        raise ModelError(f"'{spec}' has one speaker; leave the speaker {wanted!r:.40} out")
    if wanted in speakers:
        return str(wanted)
    for name, number in speakers.items():
        if str(number) == str(wanted):
            return name
    shown = ", ".join(f"{name:.40}" for name in [*speakers][:_SHOWN])
    count = f"{len(speakers)} in all" if len(speakers) > _SHOWN else "these are all"
    raise ModelError(
        f"'{spec}' has no speaker {wanted!r:.40}; known: {shown} ({count}); give a name or an id"
    )


def choose_speaker(model: TTSModel, speaker: str | int) -> MultiSpeaker:
    """Return a model speaking as one of its speakers.

    Args:
        model: Any model that speaks.
        speaker: A name, or an id as a number or in digits.

    Raises:
        ModelError: There is no such speaker, or only one.
    """
    if isinstance(model, MultiSpeaker):
        return model.with_speaker(speaker)
    raise ModelError(f"'{model.spec}' has no speakers to choose from; leave the speaker out")


def speakers_in_turn(model: TTSModel) -> tuple[str, ...]:
    """Return the names of the speakers that a model's texts go round, text by text.

    The one that was chosen alone, or all; empty for a model of one voice.
    """
    chosen = model.speaker if isinstance(model, MultiSpeaker) else None
    return tuple(model.speakers) if chosen is None else (chosen,)
