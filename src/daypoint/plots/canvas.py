"""What all pictures share: a figure that becomes a PNG, SVG or PDF file, its legend, axes and letters.

The same picture gives the same bytes: no time and no version goes into the file, and matplotlib's settings are its defaults,
whatever the user's are. matplotlib is imported inside the functions, since that takes 0.4 s, and never opens a window. This module
knows no runs.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
FORMATS = tuple(_METADATA)
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Colours that are told apart with any kind of colour vision, by M. Okabe and K. Ito."""

_WIDTH_INCHES = 10.0
_ROW_INCHES = 0.19
_DPI = 120
_SETTINGS = {
    "svg.hashsalt": "daypoint",  # otherwise random ids
    "text.parse_math": False,  # a run called $x is no formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "font.size": 10,
}


@contextlib.contextmanager
def figure_at(path: Path, height_inches: float) -> Iterator[Figure]:
    """A figure that is written to `path` at the end.

    Raises:
        ConfigError: no such format, or no matplotlib.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ConfigError(
            f"{path}: expected a file that ends in .{', .'.join(FORMATS)}, found {path.suffix!r}"
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ConfigError(f"{path}: drawing needs matplotlib; pip install matplotlib") from None
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that no font has is a box in the picture, and no news
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), dpi=_DPI, layout="constrained")
        yield figure
        figure.savefig(path, format=kind, metadata=_METADATA[kind])


def legend(figure: Figure, entries: Mapping[str, Any]) -> None:
    """Below the panels, where it hides nothing, and takes none of their height if it is long."""
    if entries:
        columns = max(1, min(5, int(140 / (max(map(len, entries)) + 7))))
        more_rows = max(0, math.ceil(len(entries) / columns) - 2)
        figure.set_figheight(figure.get_figheight() + _ROW_INCHES * more_rows)
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=9,
        )


def nothing() -> Any:
    """For an entry of a legend that is only words."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="none")


def set_log(axis: Any) -> None:
    """A logarithmic axis with plain numbers on it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis._set_axes_scale("log")
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 9
    axis.set_major_locator(LogLocator(subs=(1,) if decades > 3 else (1, 2, 5) if decades > 0.7 else "all"))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axis.set_minor_formatter(NullFormatter())


def plain(text: str, longest: int) -> str:
    """Text for a picture: one line, not too long, and shown whatever it begins with."""
    text = "".join(c if c.isprintable() else " " for c in text)
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves those out of legends
