"""Progress that is kept, to be compared with what should have been told."""


class Told:
    """Keeps steps and lines; what changes with each step is ignored."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []
        self.lines: list[str] = []

    @property
    def stages(self) -> list[str]:
        """The stage of each step."""
        return [stage for stage, *_ in self.steps]

    def advance(self, stage: str, done: int, total: int) -> None:
        """Keep a step."""
        self.steps.append((stage, done, total))

    def status(self, stage: str, text: str) -> None:
        """Ignore it."""

    def message(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)
