"""Which part did it, in words and as a table."""

from tts_compress.evaluation import formatting
from tts_compress.evaluation.blame import COLUMNS, Column
from tts_compress.evaluation.result import Blame

TITLE = "Which part did it"

TERMS = {
    TITLE: "each compressed component alone in the reference, the one with the most damage first; "
    "over all together, if their errors were independent (log-mel distances add as squares do, the "
    "rest adds up), and the whole model: what is between these is interaction. Where a duration "
    "moves by a frame, other noise follows, which raises the log-mel distance over all texts and "
    "is no loss."
}


def ranking(blame: Blame) -> Column:
    """Return the column by which components are ranked."""
    return next(column for column in COLUMNS if column.path == blame.ranked_by)


def blame_sentence(blame: Blame) -> str:
    """Return the outcome: the first component, its damage and that of the whole model."""
    column, first = ranking(blame), blame.parts[0]
    texts = "1 text" if blame.texts == 1 else f"{blame.texts} texts"
    measure = f"({column.label}; {texts})"
    if (first.values[column.path] or 0.0) <= 0.0:
        return f"No component alone does damage {measure}."
    return (
        f"{_named(first.component, first.role)} does the most damage: "
        f"{column.show(first.values[column.path])} where the whole model has "
        f"{column.show(blame.whole[column.path])} {measure}."
    )


def blame_table(blame: Blame) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the header and the lines: components, all of them together, the whole model.

    Columns that nothing has a value of are left out.
    """
    columns = [column for column in COLUMNS if blame.whole.get(column.path) is not None]
    lines = [(_named(part.component, part.role), part.values) for part in blame.parts]
    lines += [("All parts, if independent", blame.together), ("Whole model", blame.whole)]
    rows = [
        (
            name,
            *(
                column.show(values[column.path]) if column.path in values else ""
                for column in columns
            ),
        )
        for name, values in lines
    ]
    return ["Component", *(column.label for column in columns)], rows


def _named(component: str, role: str) -> str:
    name = formatting.one_line(component, 40)
    return f"{role[0].upper()}{role[1:]} ({name})" if role else name
