"""The options that several commands share, and how the commands print.

It imports nothing heavy before a command needs it, so that every command starts fast.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daypoint.base import day

if TYPE_CHECKING:
    from daypoint.base.tables import Table


def complete_address(incomplete: str) -> list[str]:
    """What the shell may put in for the beginning of an ADDRESS: days, then the runs of a day."""
    from daypoint.base.errors import AddressError

    there = day.outputs_directory()
    tag, slash, _ = incomplete.partition("/")
    if not slash:
        days = (*sorted(path.name for path in there.glob("[0-9]" * 8)), "today", "yesterday", "last")
        return [name for name in days if name.startswith(incomplete)]
    try:
        runs = day.run_directories(there, base := day.parse_day(tag))
    except AddressError:
        return []
    addresses = [f"{tag}/{run.relative_to(there / base).as_posix()}" for run in runs]
    return [address for address in addresses if address.startswith(incomplete)]


def address(text: str) -> Any:
    """An ADDRESS argument that the shell can complete."""
    return typer.Argument(help=text, autocompletion=complete_address)


Outputs = Annotated[
    Path | None,
    typer.Option(
        help="The outputs directory; by default that of the project around the working directory.",
        envvar="DAYPOINT_OUTPUTS",
    ),
]


def _query(text: str | None) -> str | None:
    from daypoint.base.errors import ConfigError
    from daypoint.reading import query

    try:
        if text is not None:
            query.parse(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    return text


Where = Annotated[
    str | None,
    typer.Option(
        callback=_query,
        help="Only these runs, such as 'optimizer.lr>=0.01 and val/accuracy>0.9 and status=finished'.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="As CSV, with every digit.")]


def print_table(table: Table, as_csv: bool) -> None:
    from daypoint.base import tables

    if as_csv:
        sys.stdout.write(tables.as_csv(table))
    else:
        print(tables.text(table, colours=tables.has_colours(sys.stdout)))


def print_json(rows: Iterable[dict[str, Any]]) -> None:
    from daypoint.base import tables

    for piece in tables.as_json(rows):
        sys.stdout.write(piece)


def warn(complaints: Iterable[str]) -> None:
    for complaint in complaints:
        print(f"warning: {complaint}", file=sys.stderr)


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def one_form(**given: bool) -> None:
    if sum(given.values()) > 1:
        raise typer.BadParameter(f"expected one of {', '.join(f'--{name}' for name in given)}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a file that cannot be written into one message."""
    from daypoint.base.errors import RunError

    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; name another file") from error
