"""Names of languages: espeak-ng voices, locales and BCP 47 tags for one language compare equal."""

from typing import Protocol, runtime_checkable

from tts_compress.models.base import Multilingual

_OTHER_NAMES = {
    "cmn": "zh",  # espeak-ng's Mandarin
    "jpn": "ja",
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
