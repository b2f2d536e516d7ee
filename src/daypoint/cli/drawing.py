"""The command that draws: plot. It reads the command line and prints which file it wrote; `daypoint.plots` draws."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daypoint.base import day
from daypoint.cli import options

if TYPE_CHECKING:
    from daypoint.record.catalog import StoredRun


def plot(
    addresses: Annotated[list[str], options.address("Days, sweeps or runs; all in one picture.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--metric", help="What to draw; repeatable. By default loss and the monitored metric."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="A file that ends in .png, .svg, .pdf or .html; by default curves_….png here.",
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Logarithmic values.")] = False,
    smooth: Annotated[
        float | None,
        typer.Option(
            metavar="WEIGHT",
            help="Also draw an exponential moving average, with this weight of the past, such as 0.9.",
        ),
    ] = None,
    where: options.Where = None,
    limit: Annotated[int | None, typer.Option("-n", min=0, help="How many runs; at most 14.")] = None,
    values: Annotated[
        bool, typer.Option("--values", help="For one sweep: draw each job's objective over the values tried.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the file afterwards.")] = False,
    outputs: options.Outputs = None,
) -> None:
    """Draw learning curves: every batch, and the mean, minimum and maximum of each epoch. Prints the name of the file. Of
    more than 14 runs, the newest are drawn.

    \b
    Example: daypoint plot today -m loss -o curves.html
    """
    there = day.outputs_directory(outputs)
    if smooth is not None and not 0 <= smooth < 1:
        raise typer.BadParameter(f"--smooth: expected at least 0 and below 1, such as 0.9, found {smooth:g}")
    if output is not None and output.suffix.lower() not in (".png", ".svg", ".pdf", ".html"):
        raise typer.BadParameter(f"-o {output}: expected a file that ends in .png, .svg, .pdf or .html")
    if output is not None and not output.absolute().parent.is_dir():
        raise typer.BadParameter(f"-o {output}: there is no directory {output.absolute().parent}")
    if values and (where or limit is not None):
        raise typer.BadParameter("--values draws all jobs of a sweep: leave --where and -n out")
    if values:
        path = _plot_sweep(addresses, output, there)
    else:
        runs = _chosen(addresses, there, where, limit)
        path = _plot_curves(runs, metric or [], output, log, smooth)
    print(path)
    if open_it:
        typer.launch(str(path.absolute()))


def _chosen(addresses: list[str], outputs: Path, where: str | None, limit: int | None) -> list[StoredRun]:
    from daypoint.base.errors import AddressError
    from daypoint.plots import curves_figure
    from daypoint.reading import selection

    most = min(limit or curves_figure.MOST_RUNS, curves_figure.MOST_RUNS)
    found = selection.newest(addresses, outputs, most, where=where)
    options.warn(found.complaints)
    if not found.runs:
        raise AddressError(f"{' '.join(addresses)}: found no run{f' with {where}' if where else ''} to draw")
    if found.remark:
        print(found.remark, file=sys.stderr)
    return [of.run for of in found.runs]


def _plot_curves(
    chosen: list[StoredRun], metrics: list[str], output: Path | None, log: bool, smooth: float | None
) -> Path:
    from daypoint.plots import curves, curves_figure, curves_page

    runs = [
        curves.load(run.files, run.record, address=run.address, status=run.status, metrics=metrics)
        for run in chosen
    ]
    if metrics:
        curves.check_metrics(metrics, runs)
    else:
        metrics = list(dict.fromkeys(name for run in runs for name in run.curves)) or ["loss"]
    missing = {run.address: [name for name in metrics if name not in run.curves] for run in runs}
    options.warn(f"{address} has no {', '.join(names)}" for address, names in missing.items() if names)
    path = output or Path(day.picture_name("curves", [run.address for run in runs]))
    draw = curves_page.write_page if path.suffix.lower() == ".html" else curves_figure.draw_curves
    with options.writing(path):
        draw(runs, metrics, path, log=log, smoothing=smooth)
    return path


def _plot_sweep(addresses: list[str], output: Path | None, outputs: Path) -> Path:
    from daypoint.plots import sweep as sweep_plot
    from daypoint.record import sweep

    if len(addresses) != 1:
        raise typer.BadParameter(f"--values: expected one sweep, found {len(addresses)} addresses")
    directory = sweep.find(addresses[0], outputs)
    path = output or Path(day.picture_name("sweep", [day.address_in_day(directory, directory.parent.name)]))
    with options.writing(path):
        sweep_plot.draw_sweep(sweep.read(directory), path)
    return path
