"""The few short texts on which many candidates are compared."""

from tts_compress.compression.calibration import read_texts
from tts_compress.models.base import TTSModel
from tts_compress.models.languages import stated_language
from tts_compress.recipes.recipe import Calibration, Recipe

_SHORTEST = 16
"""Characters; a word or two hardly show a voice."""


def short_texts(model: TTSModel, recipe: Recipe, given: str | None, count: int) -> tuple[str, ...]:
    """Return the shortest texts of a calibration set from a sentence's length on.

    They are never those of a suite, so that what is found on them is judged on others.

    Args:
        model: Its language decides between the shipped sets.
        recipe: Its calibration table names the set.
        given: A set in the place of the recipe's.
        count: Number of texts; fewer where the set is smaller.

    Raises:
        RecipeError: There is no such set.
    """
    settings = recipe.calibration or Calibration(set="en")
    whole = settings.model_copy(update={"utterances": 10_000})
    texts, _ = read_texts(whole, given, 0, stated_language(model))
    long_enough = [text for text in texts if len(text) >= _SHORTEST] or list(texts)
    return tuple(sorted(long_enough, key=lambda text: (len(text), text))[:count])
