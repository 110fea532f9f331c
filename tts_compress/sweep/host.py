"""The program that does units of a sweep, in a process of its own.

It is started as `python -m tts_compress.sweep.host`, speaks like the evaluation's workers, and ends
with the process that started it: whoever does a unit again must not do it beside this one.
"""

import platform
from pathlib import Path
from typing import Any

from tts_compress.errors import TTSCompressError, reason
from tts_compress.processes import serve
from tts_compress.sweep.identity import describe_voices
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.units import Identity, Unit
from tts_compress.sweep.work import Workplace


class _Host:
    """Serves the requests of a sweep."""

    _plan: OpenPlan
    _place: Workplace

    def open(self, plan: dict[str, Any], scratch: str) -> dict[str, Any]:
        """Take a plan."""
        self._plan = OpenPlan.model_validate(plan, strict=False)
        self._place = Workplace(self._plan, Path(scratch))
        return {}

    def describe(self, specs: list[str]) -> dict[str, Any]:
        """Return this environment, and its voices by spec."""
        found = dict(zip(specs, describe_voices(self._plan, specs), strict=True))
        return {"identity": self._place.identify(specs[0]).model_dump(), "voices": found}

    def run(self, unit: dict[str, Any], identity: dict[str, Any]) -> dict[str, Any]:
        """Do a unit; return its seconds, or the reason why it cannot be done."""
        given = Unit.model_validate(unit, strict=False)
        try:
            _check(self._place.identify(given.voice.spec), Identity.model_validate(identity))
            return {"seconds": self._place.run(given)}
        except TTSCompressError as error:
            self._place.note_failure(given, reason(error))
            return {"failed": reason(error)}


def _check(mine: Identity, planned: Identity) -> None:
    if mine == planned:
        return
    values = zip(mine.model_dump().items(), planned.model_dump().values(), strict=True)
    differing = "; ".join(
        f"{name} is {here} and not {there}" for (name, here), there in values if here != there
    )
    raise TTSCompressError(
        f"{platform.node()} has another environment than the one that planned: {differing}; "
        "install the same everywhere"
    )


if __name__ == "__main__":
    serve(_Host)
