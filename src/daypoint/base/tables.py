"""Tables: rows of values as text for a terminal, as CSV, as JSON and as one HTML page.

Text has short numbers, aligned columns and, on a terminal, colours (none with NO_COLOR); no number is ever cut. CSV has every
digit. HTML is one file that loads nothing, every cell escaped. This module knows no runs, and does without rich, whose
import would take longer than listing a thousand runs.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from daypoint.base import files

LONGEST = 48
"""Characters of a text cell; the first column, which is there to be copied, is never cut."""
_COLOURS = {"FINISHED": "32", "FAILED": "31", "KILLED": "31", "RUNNING": "36"}


@dataclass
class Table:
    """Column names and rows; a cell is a bool, number, text, list or None, as it is."""

    columns: list[str]
    rows: list[list[Any]]

    def without_empty(self) -> Table:
        """The same without columns in which no row has anything."""
        kept = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        return Table([self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])


def number(value: Any) -> str:
    """A metric as a person reads it: at most four significant digits; null as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def exact(value: Any) -> str:
    """A value with every digit; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return files.dumps(value, indent=False).decode().strip()


def clean(text: str) -> str:
    """Text without what would move a terminal's cursor or break a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def has_colours(stream: TextIO) -> bool:
    """Whether colours may go there: a terminal that is not dumb, and nobody has said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that a stream is; None for a file or a pipe, which take any width."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def widths(table: Table, *, header: bool = True, longest: int = LONGEST) -> list[int]:
    """How wide each column is as text; between two there are two spaces more."""
    return [
        max(map(_width, column), default=0) for column in zip(*_cells(table, header, longest), strict=True)
    ]


def fitting(table: Table, width: int | None) -> list[tuple[Table, int]]:
    """A table that is too wide for a terminal as several, each with the first column, and how long their text cells may
    be (`longest`). For any width (None) it is the table itself.
    """
    first, *others = widths(table)
    if width is None or first + sum(others) + 2 * len(others) <= width:
        return [(table, LONGEST)]
    names = [_width(clean(name)) for name in table.columns[1:]]
    longest = max((width - first) // max(len(others), 1) - 2, *names, 12)
    others = widths(table, longest=longest)[1:]
    parts: list[list[int]] = [[]]
    for i, wide in enumerate(others, 1):
        if parts[-1] and first + sum(2 + others[j - 1] for j in parts[-1]) + 2 + wide > width:
            parts.append([])
        parts[-1].append(i)
    kept = [[0, *part] for part in parts]
    return [
        (Table([table.columns[i] for i in of], [[row[i] for i in of] for row in table.rows]), longest)
        for of in kept
    ]


def text(table: Table, *, colours: bool = False, header: bool = True, longest: int = LONGEST) -> str:
    """Aligned columns, two spaces between them, numbers to the right.

    Args:
        longest: characters of a text cell; what is cut off is an ellipsis.
    """
    columns = table.columns
    shown = _cells(table, header, longest)
    wide = widths(table, header=header, longest=longest)
    to_right = [
        any(_is_number(row[i]) for row in table.rows)
        and all(row[i] is None or _is_number(row[i]) for row in table.rows)
        for i in range(len(columns))
    ]
    lines = []
    for place, row in enumerate(shown):
        parts = []
        for i, cell in enumerate(row):
            gap = " " * (wide[i] - _width(cell))
            code = "1" if header and place == 0 else _COLOURS.get(cell)
            painted = f"\x1b[{code}m{cell}\x1b[0m" if colours and code else cell
            parts.append(gap + painted if to_right[i] else painted + gap)
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _cells(table: Table, header: bool, longest: int) -> list[list[str]]:
    cells = [[_short(value, i, longest) for i, value in enumerate(row)] for row in table.rows]
    return [[clean(name) for name in table.columns], *cells] if header else cells


def _short(value: Any, column: int, longest: int) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return number(value)
    cell = clean(exact(value))
    return cell if column == 0 or _is_number(value) or len(cell) <= longest else cell[: longest - 1] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _width(cell: str) -> int:
    """Columns of a terminal: wide characters take two, combining marks none."""
    if cell.isascii():
        return len(cell)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in cell
    )


def as_csv(table: Table) -> str:
    """CSV as RFC 4180 has it, with a header; every digit, nothing for null, `nan` and `inf` as Python writes them."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([exact(value) for value in row] for row in table.rows)
    return stream.getvalue()


def as_json(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    """A JSON array, one object a line, piece by piece; what JSON cannot hold is text (`"NaN"`, `"Infinity"`)."""
    before = "["
    for row in rows:
        yield f"{before}\n{files.dumps(files.without_nonfinite(row), indent=False).decode().strip()}"
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"


def as_json_object(value: dict[str, Any]) -> str:
    """One object as JSON, indented."""
    return files.dumps(files.without_nonfinite(value)).decode()


_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2rem;color:#222}table{border-collapse:collapse;margin:0 0 2rem}"
    "th,td{padding:.25rem .75rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}h2{font-size:1.1rem}"
)


def as_html(title: str, sections: Sequence[tuple[str, Table]]) -> str:
    """One page with a table a section. It has no script and asks for nothing from anywhere."""
    from html import escape

    parts = [
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>"
    ]
    for heading, table in sections:
        head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
        parts.append(f"<h2>{escape(heading)}</h2>\n<table>\n<tr>{head}</tr>")
        for row in table.rows:
            cells = "".join(
                f"<td{' class=n' if _is_number(value) else ''}>{escape(exact(value))}</td>" for value in row
            )
            parts.append(f"<tr>{cells}</tr>")
        parts.append("</table>")
    return "\n".join(parts) + "\n</html>\n"
