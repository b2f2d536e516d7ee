"""Learning curves as one HTML file that needs no server and no network: zoom, hover, toggle, smooth.

The page is `curves.html` beside this module; the data goes into it as JSON, arrays as base64 of little-endian
doubles. A curve of more than 20,000 points is thinned as in a picture, and the page says so. Whatever comes
from a run is data to the page, never markup, and its content policy lets it load nothing. One number: 0.6 MB
and 2.6 s for a million points.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import numpy as np

from daypoint.base import files
from daypoint.plots import curves, thinning
from daypoint.plots.curves import Curve, RunCurves

MOST_POINTS = 20_000
"""Of one curve."""
_POINTS_IN_ALL = 300_000
_MEANS = 5_000


def write_page(
    runs: Sequence[RunCurves],
    metrics: Sequence[str],
    path: Path,
    *,
    title: str,
    log: bool = False,
    smoothing: float | None = None,
) -> int:
    """Write the page. Arguments as of `daypoint.plots.curves_figure.draw_curves`.

    Args:
        title: what the page is called.

    Returns:
        How many points of curves are in it.
    """
    count = sum(metric in run.curves for run in runs for metric in metrics)
    columns = max(min(MOST_POINTS, _POINTS_IN_ALL // max(count, 1)) // 4, 500)
    points = 0
    shown = []
    for run, label in zip(runs, curves.labels(runs), strict=True):
        packed = {}
        for metric in metrics:
            if metric in run.curves:
                packed[metric], kept = _pack(run.curves[metric], columns)
                points += kept
        state = "" if run.status == "FINISHED" else run.status.lower()
        best = None if run.best_step is None else run.best_step - 1
        shown.append(
            {"label": label, "address": run.address, "state": state, "resumed": run.resumed_at}
            | {"best": best, "bestValues": {m: _best(run, m) for m in packed}, "curves": packed}
        )
    data = {
        "title": title,
        "metrics": list(metrics),
        "runs": shown,
        "log": log,
        "smoothing": smoothing or 0.0,
    }
    files.write_atomic(path, _fill(title, data).encode())
    return points


def _fill(title: str, data: Any) -> str:
    template = package_files("daypoint.plots").joinpath("curves.html").read_text(encoding="utf-8")
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    # In a script element only `<` could end anything; the others for whoever pastes it elsewhere.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    parts = {"TITLE": html.escape(title), "DATA": text}
    return re.sub(
        "__(TITLE|DATA)__", lambda match: parts[match[1]], template
    )  # in one go: a title may be __DATA__


def _pack(curve: Curve, columns: int) -> tuple[dict[str, Any], int]:
    kept = thinning.thin(curve.steps, curve.values, columns)
    is_thinned = len(kept) < len(curve.values)
    packed: dict[str, Any] = {
        "steps": _base64(curve.steps[kept]),
        "values": _base64(curve.values[kept]),
        "total": len(curve.values),
        "byBatch": curve.by_batch,
        "lost": curve.nonfinite,
        "epochs": {name: _base64(of) for name, of in curve.epochs.items()},
    }
    if is_thinned:
        steps, mean, weights = thinning.means(curve.steps, curve.values, _MEANS)
        packed["means"] = {"steps": _base64(steps), "values": _base64(mean), "counts": _base64(weights)}
    return packed, len(kept)


def _best(run: RunCurves, metric: str) -> float | None:
    return None if run.best_step is None else run.curves[metric].at(run.best_step)


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode()
