"""Learning curves as one HTML file that needs no server and no network: zoom, hover, toggle, smooth.

The page is `curves.html` beside this module; the data goes into it as JSON, arrays as base64 of little-endian
doubles. A curve of more than 20,000 points is thinned as in a picture, and the page says so. Whatever comes
from a run is data to the page, never markup, and its content policy lets it load nothing. This module reads no run directories.
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
    log: bool = False,
    smoothing: float | None = None,
) -> None:
    """Write the page. Arguments as of `daypoint.plots.curves_figure.draw_curves`."""
    count = sum(metric in run.curves for run in runs for metric in metrics)
    columns = max(min(MOST_POINTS, _POINTS_IN_ALL // max(count, 1)) // 4, 500)
    shown = []
    for run, label in zip(runs, curves.labels(runs), strict=True):
        packed = {metric: _pack(run.curves[metric], columns) for metric in metrics if metric in run.curves}
        best = run.best_step
        shown.append(
            {
                "label": label,
                "address": run.address,
                "state": "" if run.status == "FINISHED" else run.status.lower(),
                "resumed": run.resumed_at,
                "best": None if best is None else best - 1,
                "bestValues": {m: None if best is None else run.curves[m].at(best) for m in packed},
                "curves": packed,
            }
        )
    title = curves.title(runs)
    data = {
        "title": title,
        "metrics": list(metrics),
        "runs": shown,
        "log": log,
        "smoothing": smoothing or 0.0,
    }
    files.write_atomic(path, _fill(title, data).encode())


def _fill(title: str, data: Any) -> str:
    template = package_files("daypoint.plots").joinpath("curves.html").read_text(encoding="utf-8")
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    # In a script element only `<` could end anything; the others for whoever pastes it elsewhere.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    parts = {"TITLE": html.escape(title), "DATA": text}
    # In one go: a title may be __DATA__.
    return re.sub("__(TITLE|DATA)__", lambda match: parts[match[1]], template)


def _pack(curve: Curve, columns: int) -> dict[str, Any]:
    kept = thinning.thin(curve.steps, curve.values, columns)
    packed: dict[str, Any] = {
        "steps": _base64(curve.steps[kept]),
        "values": _base64(curve.values[kept]),
        "total": len(curve.values),
        "byBatch": curve.by_batch,
        "lost": curve.nonfinite,
        "epochs": {name: _base64(of) for name, of in curve.epochs.items()},
    }
    if len(kept) < len(curve.values):
        means = thinning.means(curve.steps, curve.values, _MEANS)
        packed["means"] = dict(zip(("steps", "values", "counts"), map(_base64, means), strict=True))
    return packed


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode()
