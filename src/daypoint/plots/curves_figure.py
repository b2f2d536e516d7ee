"""Pictures of learning curves, as PNG, SVG or PDF files.

A curve is drawn with as many points as the picture has pixel columns (`daypoint.plots.thinning`), so a million cost
hardly more than a thousand, and no spike is lost. This module reads no run directories and knows no MLflow.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daypoint.plots import curves, thinning
from daypoint.plots.canvas import PALETTE, figure_at, legend, nothing, plain, set_log
from daypoint.plots.curves import Curve, RunCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_RUNS = 2 * len(PALETTE)
"""Each colour once whole and once dashed."""

_COLUMNS = 1100
"""A little more than a panel has pixels across."""
_LONGEST_LABEL = 90
_MOST_DOTS = 100
"""On a line; more would hide it."""


def draw_curves(
    runs: Sequence[RunCurves],
    metrics: Sequence[str],
    path: Path,
    *,
    log: bool = False,
    smoothing: float | None = None,
) -> None:
    """Draw learning curves: a panel for each metric, a colour for each run.

    Every batch is a light line, the mean of each epoch a dot at its last step, its least and greatest value a
    band over its steps. NaN and infinities are gaps, with a mark at the edge of the panel. What is missing is
    said in the picture.

    Args:
        runs: one to `MOST_RUNS`.
        metrics: at least one; a run that does not have one has no curve in its panel.
        path: a file that ends in .png, .svg or .pdf; replaced.
        log: logarithmic values; those that are not positive are left out, and counted.
        smoothing: weight of an exponential moving average (`daypoint.plots.thinning.smooth`), at least 0 and below 1.

    Raises:
        ConfigError: another ending, or matplotlib is not installed.
    """
    styles = [(PALETTE[i % len(PALETTE)], "--" if i >= len(PALETTE) else "-") for i in range(len(runs))]
    names = curves.labels(runs)
    with np.errstate(all="ignore"), figure_at(path, 0.9 + 2.9 * len(metrics)) as figure:
        figure.suptitle(plain(curves.title(runs), 110), fontsize=11, x=0.01, ha="left")
        panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        entries: dict[str, Any] = {}
        for axes, metric in zip(panels, metrics, strict=True):
            panel = _Panel(axes, metric, log, smoothing, len(runs), entries)
            for run, style in zip(runs, styles, strict=True):
                panel.add(run, *style)
            panel.close()
        figure.align_ylabels(panels)
        panels[-1].set_xlabel("step (batches done before this one)")
        _limit_steps(panels[-1], [c.steps for run in runs for c in run.curves.values() if c.name in metrics])
        handles = {} if len(runs) == 1 else _run_handles(names, styles)
        legend(figure, {**handles, **entries})


class _Panel:
    """One metric of all runs."""

    def __init__(
        self, axes: Axes, metric: str, log: bool, smoothing: float | None, runs: int, legend: dict[str, Any]
    ) -> None:
        self._axes = axes
        self._metric = metric
        self._log = log
        self._smoothing = smoothing
        self._crowd = runs > 1
        self._band_alpha = 0.16 if runs == 1 else min(0.07, 0.3 / runs)
        self._legend = legend
        self._lost: Counter[str] = Counter()
        self._marks: list[tuple[np.ndarray, float, str]] = []
        self._shown = False

    def add(self, run: RunCurves, color: str, dash: str) -> None:
        """Draw one run."""
        curve = run.curves.get(self._metric)
        if curve is None or not len(curve.values):
            return
        self._note_lost(curve, color)
        y = self._drawable(curve.values)
        strong = {"color": color, "linestyle": dash, "linewidth": 1.6, "zorder": 3.0}
        if curve.by_batch:
            light = {"color": color, "linewidth": 0.6, "alpha": 0.3 if self._crowd else 0.45, "zorder": 2.0}
            if not np.isfinite(curve.epochs["mean"]).any() and self._smoothing is None:  # the only line
                light |= {"linewidth": 1.0, "alpha": 0.85}
            self._line("every batch", curve.steps, y, light)
            self._epochs(curve, strong)
            self._average(curve, strong)
        else:
            hollow = {"marker": "D", "markerfacecolor": "white"} if len(y) <= _MOST_DOTS else {}
            thin = {"linewidth": 1.1, "markersize": 4.5, **hollow}
            self._line("once an epoch", curve.steps, y, {**strong, **thin})
        for step in run.resumed_at:
            line = self._axes.axvline(step, color=color, linestyle=":", linewidth=1.0, zorder=1.5)
            self._legend.setdefault("resumed", line)
        self._best(run, curve, color)

    def _line(self, label: str, x: np.ndarray, y: np.ndarray, style: dict[str, Any]) -> None:
        kept = thinning.thin(x, y, _COLUMNS)
        x, y = x[kept], y[kept]
        self._shown |= bool(np.isfinite(y).any())
        (line,) = self._axes.plot(x, y, **style)
        self._legend.setdefault(label, _grey(line) if self._crowd else line)
        alone = thinning.alone(y)
        if alone.any() and "marker" not in style:  # no line goes through a point between two gaps
            dot = {"color": style["color"], "markersize": 7, "alpha": max(style.get("alpha", 1), 0.7)}
            self._axes.plot(x[alone], y[alone], ".", **dot)

    def _epochs(self, curve: Curve, style: dict[str, Any]) -> None:
        epochs = curve.epochs
        mean = self._drawable(epochs["mean"])
        if not np.isfinite(mean).any():
            return
        low, high = self._drawable(epochs["min"]), self._drawable(epochs["max"])
        if self._log:  # a band that goes down to zero ends where the curve does
            positive = curve.values[np.isfinite(curve.values) & (curve.values > 0)]
            low = np.where(np.isfinite(high) & ~np.isfinite(low), positive.min(initial=math.inf), low)
        # A gap after each epoch, so that no band is drawn where nothing was measured.
        x = np.column_stack([epochs["first"] - 0.5, epochs["last"] + 0.5, epochs["last"] + 0.5]).ravel()
        gap = np.full(len(mean), math.nan)
        lower, upper = (np.column_stack([y, y, gap]).ravel() for y in (low, high))
        light = {"color": style["color"], "alpha": self._band_alpha, "linewidth": 0, "zorder": 1.0}
        band = self._axes.fill_between(x, lower, upper, **light)
        label = "least to greatest of the epoch"
        self._legend.setdefault(label, _grey(band) if self._crowd else band)
        dots = {"marker": "o" if len(mean) <= _MOST_DOTS else None, "markersize": 4.0}
        self._line("mean of the epoch", epochs["last"], mean, {**style, **dots})

    def _average(self, curve: Curve, style: dict[str, Any]) -> None:
        if self._smoothing is None:
            return
        color = style["color"] if self._crowd else "0.1"  # its own, where the colour does not say which run
        label = f"moving average, weight {self._smoothing:g}"
        average = self._drawable(thinning.smooth(curve.values, self._smoothing))
        self._line(label, curve.steps, average, {**style, "color": color, "linewidth": 1.9, "zorder": 4.0})

    def _best(self, run: RunCurves, curve: Curve, color: str) -> None:
        value = curve.at(run.best_step) if run.best_step is not None else None
        if value is None or (self._log and value <= 0):
            return
        style = {"markersize": 13, "markeredgecolor": "white", "markeredgewidth": 1.0, "zorder": 5.0}
        (star,) = self._axes.plot([run.best_step - 1], [value], "*", color=color, **style)
        self._legend.setdefault("best checkpoint", _grey(star) if self._crowd else star)

    def _drawable(self, y: np.ndarray) -> np.ndarray:
        return np.where(y > 0, y, math.nan) if self._log else y

    def _note_lost(self, curve: Curve, color: str) -> None:
        values = curve.values
        self._lost.update(curve.nonfinite)
        if self._log and (count := int((np.isfinite(values) & (values <= 0)).sum())):
            self._lost["not positive"] += count
        for edge, found in ((1.0, values == math.inf), (0.0, np.isnan(values) | (values == -math.inf))):
            if found.any():
                x = curve.steps[found]
                kept = thinning.thin(x, np.zeros(len(x)), _COLUMNS // 2)
                self._marks.append((x[kept], edge, color))

    def close(self) -> None:
        """Scales, grid, marks at the edges, and words for what is not there."""
        axes = self._axes
        axes.set_ylabel(plain(self._metric, 40))
        axes.grid(alpha=0.25, linewidth=0.6)
        if self._log and self._shown:
            set_log(axes.yaxis)
        elif not self._shown:
            axes.set_yticks([])
            what = "no value can be shown" if self._lost else "no values yet"
            axes.text(0.5, 0.5, what, transform=axes.transAxes, ha="center", va="center", color="0.4")
        else:
            axes.ticklabel_format(axis="y", useOffset=False)
            axes.margins(y=0.06)
        at_edge = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 6.0, "markersize": 5}
        for x, edge, color in self._marks:
            (mark,) = axes.plot(x, np.full(len(x), edge), "x", color=color, **at_edge)
        if self._lost:
            words = ", ".join(f"{count:,} {kind}" for kind, count in self._lost.items())
            label = f"{plain(self._metric, 40)}: {words} (not drawn)"
            self._legend[label] = _grey(mark) if self._marks else nothing()


def _limit_steps(axes: Axes, steps: Sequence[np.ndarray]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ends = [int(x) for of in steps if len(of) for x in (of[0], of[-1])] or [0]
    margin = max(0.5, 0.01 * (max(ends) - min(ends)))
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    # There is no half step.
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if float(x).is_integer() else ""))


def _run_handles(names: Sequence[str], styles: Sequence[tuple[str, str]]) -> dict[str, Any]:
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for name, (color, dash) in zip(names, styles, strict=True):
        label = plain(name, _LONGEST_LABEL)
        while label in handles:
            label += " "
        handles[label] = Line2D([], [], color=color, linestyle=dash, linewidth=2.4)
    return handles


def _grey(artist: Any) -> Any:
    """The same in grey, for a legend of what all runs have."""
    same = copy.copy(artist)
    same.set_color("0.35")
    return same
