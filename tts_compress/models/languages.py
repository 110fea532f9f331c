"""Names of languages: espeak-ng voices, locales and BCP 47 tags for one language compare equal."""

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
