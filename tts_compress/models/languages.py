"""Names of languages, which compare equal for one language.

They are espeak-ng voices, locales, BCP 47 tags and the three letters of ISO 639-3.
"""

import re
from typing import Protocol, runtime_checkable

from tts_compress.models.base import Multilingual

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


@runtime_checkable
class StatesLanguage(Protocol):
    """A model that speaks one language and states it; models of other families may state none."""

    @property
    def language(self) -> str | None:
        """Name of the language, such as `de` or `en-us`; None for one of several, none chosen."""


def stated_language(model: object) -> str | None:
    """Return the language that a model states; None where it states none."""
    return model.language if isinstance(model, StatesLanguage) else None


def spoken_languages(model: object) -> tuple[str, ...]:
    """Return the languages that a model accepts texts of; none where it states none."""
    if (stated := stated_language(model)) is not None:
        return (stated,)
    return model.languages if isinstance(model, Multilingual) else ()
