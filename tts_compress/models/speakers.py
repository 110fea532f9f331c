"""Speakers of a voice that has several: their names and ids, and the choice of one."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tts_compress.errors import ModelError
from tts_compress.models.base import TTSModel

# ISO 639-3, as MMS names languages, to ISO 639-1; languages without two letters keep three.
_TWO_LETTERS = (
    "abk ab afr af aka ak als sq amh am ara ar arb ar asm as aym ay azb az aze az azj az bak ba "
    "bam bm bel be ben bn bod bo bos bs bre br bul bg cat ca ces cs che ce chv cv cor kw cym cy "
    "dan da deu de div dv dzo dz ekk et ell el eng en epo eo est et eus eu ewe ee fao fo fas fa "
    "fij fj fin fi fra fr fry fy ful ff gla gd gle ga glg gl glv gv grn gn gug gn guj gu hat ht "
    "hau ha heb he hin hi hrv hr hun hu hye hy ibo ig iku iu ind id isl is ita it jav jv jpn ja "
    "kal kl kan kn kas ks kat ka kaz kk khk mn khm km kik ki kin rw kir ky kmr ku kor ko kur ku "
    "lao lo lat la lav lv lin ln lit lt ltz lb lug lg lvs lv mal ml mar mr mkd mk mlg mg mlt mt "
    "mon mn mri mi msa ms mya my nav nv nep ne nld nl nno no nob no nor no npi ne nya ny oci oc "
    "ori or orm om ory or oss os pan pa pes fa plt mg pol pl por pt pus ps que qu roh rm ron ro "
    "run rn rus ru sag sg san sa sin si slk sk slv sl sme se smo sm sna sn snd sd som so sot st "
    "spa es sqi sq srd sc srp sr ssw ss sun su swa sw swe sv swh sw tah ty tam ta tat tt tel te "
    "tgk tg tgl tl tha th tir ti ton to tsn tn tso ts tuk tk tur tr twi tw uig ug ukr uk urd ur "
    "uzb uz uzn uz ven ve vie vi wol wo xho xh yid yi yor yo zho zh zlm ms zul zu"
)

_OTHER_NAMES: dict[str, str] = dict(re.findall(r"(\w{3}) (\w{2})", _TWO_LETTERS)) | {
    "cmn": "zh",  # espeak-ng's Mandarin
    "nb": "no",  # Bokmål, as espeak-ng and BCP 47 write it; recognizers write `no`
    "nn": "no",
}


def primary_language(name: str) -> str:
    """Return the language of a name without its region: `en` of `en-us` and of `en_GB`."""
    language = name.replace("_", "-").split("-")[0].strip().lower()
    return _OTHER_NAMES.get(language, language)


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
    speakers = sorted((unnamed | stated).items(), key=lambda item: item[1])
    return MappingProxyType(dict(speakers))


def find_speaker(speakers: Mapping[str, int], wanted: str | int, spec: str) -> str:
    """Return the name of a speaker that is given by name or id; a name comes first."""
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


def speakers_in_turn(model: TTSModel) -> tuple[str, ...]:
    """Return the names of the speakers that a model's texts go round, text by text.

    The one that was chosen alone, or all; empty for a model of one voice.
    """
    chosen = model.speaking.speaker
    return tuple(model.speakers) if chosen is None else (str(chosen),)
