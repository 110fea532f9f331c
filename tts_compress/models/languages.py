"""Names of languages: espeak-ng voices, locales and BCP 47 tags for one language compare equal."""

from typing import Protocol, runtime_checkable

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
    def language(self) -> str:
        """Name of the language, such as `de` or `en-us`."""


def stated_language(model: object) -> str | None:
    """Return the language that a model states; None where it states none."""
    return model.language if isinstance(model, StatesLanguage) else None
