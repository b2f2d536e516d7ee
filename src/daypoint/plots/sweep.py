"""The picture of a sweep: the objective of each job, over the values that were tried.

Jobs that differ in nothing but a seed are also drawn as one point with their mean and sample standard
deviation. Every job is drawn at its own value, also where several lie on one another. It reads the manifest
(`daypoint.record.sweep`) and no run directory.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import keys
from daypoint.plots.canvas import PALETTE, figure_at, legend, nothing, plain, set_log
from daypoint.record import sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 12
_PANELS_IN_A_ROW = 3
_DECADES = 1.5
"""Positive values that lie so far apart get a logarithmic axis."""
_FEW_VALUES = 6
"""So many are ticks themselves."""
_MARGIN = 0.12


@dataclass
class _Job:
    number: int
    values: dict[str, str]
    """Of each key that was swept, as the command line has them."""
    objective: float


@dataclass
class _Axis:
    """Where the values of one key lie beside one another."""

    places: dict[str, float]
    is_number: bool = False
    is_log: bool = False


def draw_sweep(manifest: Mapping[str, Any], path: Path) -> None:
    """Draw the objective of each job over each hyperparameter that was swept.

    Args:
        manifest: the content of sweep.json.
        path: a file that ends in .png, .svg or .pdf; replaced.

    Raises:
        ConfigError: another ending, or matplotlib is not installed.
    """
    jobs, without = _jobs(manifest)
    space = list(manifest["space"])
    seeds = [key for key in space if sweep.is_seed(key)]
    tried = [key for key in space if key not in seeds] or seeds or ["job"]
    shown = tried[:MOST_PANELS]
    rows = -(-len(shown) // _PANELS_IN_A_ROW)
    metric, mode = _objective(manifest)
    best = sweep.all_best(manifest)
    with figure_at(path, 1.1 + 3.3 * rows) as figure:
        what = " ".join(["sweep", *(["of", ", ".join(space)] if space else [])])
        heading = f"{manifest['started'][:10].replace('-', '')}  {what}: {len(manifest['jobs'])} jobs"
        figure.suptitle(plain(heading, 110), fontsize=11, x=0.01, ha="left")
        panels = figure.subplots(rows, min(len(shown), _PANELS_IN_A_ROW), sharey=True, squeeze=False)
        entries: dict[str, Any] = {}
        for axes, key in zip_longest(panels.ravel(), shown):
            if key is None:
                axes.set_axis_off()
            else:
                _draw_panel(axes, key, jobs, set(seeds) - {key}, best, entries)
        for axes in panels[:, 0]:
            axes.set_ylabel(plain(metric, 40) + (f" ({mode} is best)" if mode else ""))
        if without:
            words = ", ".join(f"{count} {kind.lower()}" for kind, count in without.items())
            entries[f"no value: {words}"] = nothing()
        if len(tried) > len(shown):
            entries[f"{len(tried) - len(shown)} more hyperparameters are not shown"] = nothing()
        legend(figure, entries)


def _jobs(manifest: Mapping[str, Any]) -> tuple[list[_Job], Counter[str]]:
    """The jobs with a finite value, and how many others there are of each kind."""
    jobs, without = [], Counter()
    for number, job in sweep.jobs_of(manifest):
        value = job.get("value")
        if job["status"] in sweep.DONE and isinstance(value, int | float) and math.isfinite(value):
            values = keys.given(sweep.varying(job["overrides"], manifest))
            jobs.append(_Job(number, {"job": str(number), **values}, float(value)))
        else:
            is_measured = job["status"] in sweep.DONE and value is not None
            without["not finite" if is_measured else job["status"]] += 1
    return jobs, without


def _objective(manifest: Mapping[str, Any]) -> tuple[str, str]:
    for _, job in reversed(sweep.jobs_of(manifest)):
        if job.get("metric"):
            return job["metric"], job.get("mode") or ""
    return "value", ""


def _draw_panel(
    axes: Axes,
    key: str,
    jobs: list[_Job],
    seeds: set[str],
    best: list[int],
    entries: dict[str, Any],
) -> None:
    jobs = [job for job in jobs if key in job.values]
    axes.set_xlabel(plain(key, 50))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.ticklabel_format(axis="y", useOffset=False)
    if not jobs:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "no values yet", transform=axes.transAxes, ha="center", va="center", color="0.4")
        return
    axis = _axis(key, [job.values[key] for job in jobs])
    if sweep.is_seed(key) and len(jobs) > 1:
        mean, deviation = _mean_and_deviation(jobs)
        band = axes.axhspan(mean - deviation, mean + deviation, color=PALETTE[1], alpha=0.12, linewidth=0)
        axes.axhline(mean, color=PALETTE[1], linewidth=1.2)
        entries.setdefault(f"over {len(jobs)} seeds: {mean:.4g} ± {deviation:.2g}", band)
    ignored = {*seeds, "job"} if seeds else set()
    groups: dict[tuple[tuple[str, str], ...], list[_Job]] = {}
    for job in jobs:
        alike = tuple((k, v) for k, v in job.values.items() if k not in ignored)
        groups.setdefault(alike, []).append(job)
    for group in groups.values():
        if len(group) > 1:
            mean, deviation = _mean_and_deviation(group)
            look = {"color": PALETTE[1], "markerfacecolor": "none", "markersize": 7, "capsize": 4}
            x = axis.places[group[0].values[key]]
            bars = axes.errorbar([x], [mean], [deviation], fmt="s", zorder=3.0, **look)
            entries.setdefault("mean ± standard deviation over seeds", bars)

    def draw(places: list[tuple[float, float]], label: str, marker: str, **look: Any) -> None:
        if places:
            entries.setdefault(label, axes.plot(*zip(*places, strict=True), marker, **look)[0])

    places = {job.number: (axis.places[job.values[key]], job.objective) for job in jobs}
    several = [place for place, count in Counter(places.values()).items() if count > 1]
    first = [number for number in places if number in best]
    draw(list(places.values()), "one job", "o", color=PALETTE[0], alpha=0.55, zorder=2.0)
    ring = {"markersize": 17, "markerfacecolor": "none", "color": PALETTE[0], "zorder": 5.0}
    draw(several, "several jobs at one place", "o", **ring)
    if first:
        numbers = plain(", ".join(map(str, first)), 40)
        label = f"best: {places[first[0]][1]:.4g} (job{'s' * (len(first) > 1)} {numbers})"
        star = {"markersize": 15, "markeredgecolor": "white", "color": PALETTE[2], "zorder": 4.0}
        draw([places[number] for number in first], label, "*", **star)
    _mark_values(axes, axis)


def _mean_and_deviation(jobs: list[_Job]) -> tuple[float, float]:
    objectives = [job.objective for job in jobs]
    return statistics.fmean(objectives), statistics.stdev(objectives)


def _axis(key: str, texts: list[str]) -> _Axis:
    """Numbers lie where they are, anything else, and seeds, in the order in which it came."""
    unique = list(dict.fromkeys(texts))
    try:
        numbers = [float(text) for text in unique]
    except ValueError:
        numbers = [math.nan]
    if sweep.is_seed(key) or not all(abs(number) < 1e300 for number in numbers):
        return _Axis({text: float(i) for i, text in enumerate(unique)})
    low, high = min(numbers), max(numbers)
    is_log = low > 0 and math.log10(high) - math.log10(low) >= _DECADES
    return _Axis(dict(zip(unique, numbers, strict=True)), True, is_log)


def _mark_values(axes: Axes, axis: _Axis) -> None:
    places = list(axis.places.values())
    if not axis.is_number:
        longest = min(16, max(map(len, axis.places)))
        names = [plain(text, 16) for text in axis.places]
        slant = {"rotation": 30, "ha": "right"} if longest * len(names) > 36 else {}
        axes.set_xticks(places, names, **slant)
        axes.set_xlim(min(places) - 0.5, max(places) + 0.5)
        return
    low, high = min(places), max(places)
    if axis.is_log:
        set_log(axes.xaxis)
        axes.set_xlim(low * (low / high) ** _MARGIN, high * (high / low) ** _MARGIN)
    else:
        margin = _MARGIN * (high - low) or max(abs(low) * 0.1, 0.5)
        axes.set_xlim(low - margin, high + margin)
    if len(places) <= _FEW_VALUES:  # the values themselves are the best ticks
        axes.set_xticks(places, [plain(text, 12) for text in axis.places])
        axes.tick_params(axis="x", which="minor", length=0)
