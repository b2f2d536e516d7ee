"""A CSV or Parquet file as named columns, each of numbers or of text.

It does not know which column is the target, and it never guesses: a file that pandas would read as
something else (rows longer than the line of names, a name given twice) is an error. Whole numbers are exact, up to 2^63.
"""

from __future__ import annotations

import datetime
import difflib
import os
import shlex
from decimal import Decimal
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from daypoint.base.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")

Column = np.ndarray | list[str | None]
"""Numbers: int64, or float64 with NaN where a value is missing. Text: None where it is missing."""


def read_columns(
    file: Path, target: str, unused: list[str], separator: str | None, missing: list[str]
) -> dict[str, Column]:
    """The columns of `file`, an absolute path, in their order.

    Args:
        target: a name that must be there.
        unused: names that must be there; such a column is left out if it holds neither numbers nor text.
        separator: one character that stands between the values of a CSV file, `\\t` for a tab; None: a comma, in a .tsv
            file a tab.
        missing: texts that stand for a missing value in a CSV file, besides the empty one, NA, NaN, null and
            None.

    Raises:
        ConfigError: there is no such file or column, the file cannot be read, or a column holds neither
        numbers nor text.
    """
    if not os.path.isfile(file):
        found = "a directory" if os.path.isdir(file) else "nothing"
        raise ConfigError(
            f"data.path: expected a CSV or Parquet file, found {found} at {file}; "
            "a relative path starts at the working directory"
        )
    endings = [ending.lower() for ending in file.suffixes if ending.lower() != ".gz"]
    kind = endings[-1] if endings else ""
    if kind not in PARQUET and kind not in SEPARATORS:
        known = ", ".join([*SEPARATORS, *PARQUET])
        raise ConfigError(f"data.path: expected a name that ends in {known}, found {file.name!r} ({file})")
    frame, names = _read(file, kind, separator, missing)
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise ConfigError(
            f"data.path: expected one column of a name, found several {', '.join(twice)} in {file}"
        )
    frame.columns = [str(name) for name in frame.columns]
    for name in (target, *unused):
        _check_name(name, list(frame.columns), file)
    columns: dict[str, Column] = {}
    for name in frame.columns:
        try:
            columns[name] = _column(name, frame[name])
        except ConfigError:
            if name not in unused:
                raise
    return columns


def _read(file: Path, kind: str, separator: str | None, missing: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The table, and the names of its columns as the file has them: of two equal names pandas changes one."""
    import pandas as pd

    if separator == "\\t":  # as a shell and Hydra hand it on
        separator = "\t"
    if separator and len(separator) > 1 and separator != r"\s+":
        raise ConfigError(
            f"data.separator: expected one character, or \\s+ for white space, found {separator!r}"
        )
    try:
        if kind in PARQUET:
            frame = pd.read_parquet(file)
            frame = frame if frame.index.names == [None] else frame.reset_index()
            return frame, [str(name) for name in frame.columns]
        sep = separator or SEPARATORS[kind]
        header = pd.read_csv(file, sep=sep, header=None, nrows=1, dtype=str, keep_default_na=False)
        # Read in pieces (low_memory), a column's type can change from one piece to the next.
        frame = pd.read_csv(file, sep=sep, na_values=missing, low_memory=False)
        first_row = pd.read_csv(file, sep=sep, header=None, skiprows=1, nrows=1) if len(frame) else frame
    except pd.errors.EmptyDataError:
        raise ConfigError(f"data.path: expected a table, found nothing in {file}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"data.path: expected text in UTF-8, cannot read {file}: {error.reason}; save it as UTF-8"
        ) from error
    except (ValueError, OSError, EOFError) as error:  # the errors of pandas and pyarrow are among them
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"data.path: expected a {kind} file, cannot read {file}: {first}") from error
    if len(first_row.columns) > len(header.columns):  # pandas would take the first value for the row's name
        raise ConfigError(
            f"data.path: expected a name for each value, found rows longer than the names in {file}"
        )
    return frame, header.iloc[0].tolist()


def _check_name(name: str, names: list[str], file: Path) -> None:
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if len(names) == 1 and (other := next((sign for sign in ";\t|" if sign in names[0]), None)):
        given = r"data.separator='\t'" if other == "\t" else typed("data.separator", other)
        hint = f"; its values seem to be separated by {other!r}: give {given}"
    shown = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    raise ConfigError(f"data: expected a column named {name!r} in {file}, found {shown}{hint}")


def _column(name: str, column: pd.Series) -> Column:
    import pandas as pd

    kinds = pd.api.types
    missing = column.isna()
    is_object = kinds.is_object_dtype(column)

    def has_only(*types: type) -> bool:
        return is_object and all(isinstance(value, types) for value in column[~missing])

    is_class = kinds.is_bool_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype)
    is_string = not is_object and kinds.is_string_dtype(column)
    if is_class or is_string or has_only(str, bool, datetime.time):
        return [None if gone else str(value) for gone, value in zip(missing, column, strict=True)]
    if has_only(datetime.date):
        column = pd.to_datetime(column)
    elif has_only(Number, Decimal):
        column = pd.to_numeric(column.map(float, na_action="ignore"))
    if kinds.is_datetime64_any_dtype(column):
        column = column - pd.Timestamp(0, tz=column.dt.tz)
    if kinds.is_timedelta64_dtype(column):
        column = column / pd.Timedelta(seconds=1)
    if kinds.is_numeric_dtype(column) and not kinds.is_complex_dtype(column):
        is_exact = kinds.is_integer_dtype(column) and not missing.any() and column.max() < 2**63
        return column.to_numpy(np.int64) if is_exact else column.to_numpy(np.float64, na_value=np.nan)
    found = sorted({type(value).__name__ for value in column[~missing]})
    raise ConfigError(
        f"data: column {name!r}: expected numbers or text, found {', '.join(found)}; "
        f"leave it out: {typed('data.exclude', [name])}"
    )


def typed(key: str, value: str | list[str]) -> str:
    """A setting as it can be typed in a shell, which takes one pair of quotes off before Hydra reads the rest."""
    text = _quoted(value) if isinstance(value, str) else f"[{','.join(map(_quoted, value))}]"
    override = f"{key}={text}"
    if "'" not in override:
        return override
    return shlex.quote(override) if set(override) & set('"$`\\!') else f'"{override}"'


def _quoted(text: str) -> str:
    """A text as Hydra takes it, whose bare words are ASCII."""
    is_bare = text.isascii() and text.replace("_", "").isalnum()
    return text if is_bare else "'" + text.replace("'", "\\'") + "'"
