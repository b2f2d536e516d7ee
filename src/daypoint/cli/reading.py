"""The commands that look at runs: ls, show, compare, trend. They read the command line and print; `daypoint.reading` finds
out what is printed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from daypoint.base import day
from daypoint.cli import options


def ls(
    address: Annotated[str | None, options.address("A day, range or sweep; by default every day.")] = None,
    where: options.Where = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Sort by this, smallest first; with a minus (--sort=-best) largest first."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("-n", min=0, help="How many runs; 0 for all.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAME,…", help="Only these columns.")] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    outputs: options.Outputs = None,
) -> None:
    """List runs, the newest last, with the hyperparameters that vary, the best value and the last metrics. Without -n
    these are the newest 50 runs (with --sort the first 50), with --csv or --json all. A terminal gets the columns that fit
    its width.

    A query asks for hyperparameters (optimizer.lr, or its last word if nothing else is called that), metrics (val/accuracy is the last value; best(…),
    min(…), max(…), first(…)) and facts (status, day, model, steps, seconds, host, git.commit, tags.team, …) with = != < <= > >=
    ~ in, and, or, not. A run that does not have a name matches neither a condition on it nor the opposite.

    \b
    Example: daypoint ls today
    Example: daypoint ls 'last 7 days' --where 'optimizer.lr in [0.1, 0.01] and not model=cnn' --sort=-best -n 10
    Example: daypoint ls 20260328/sweep-1502 --columns 'address,optimizer.lr,best(val/accuracy)' --csv
    """
    from daypoint.base import tables
    from daypoint.reading import listing

    options.one_form(json=as_json, csv=as_csv)
    there = day.outputs_directory(outputs)
    count = limit if limit is not None else 0 if as_json or as_csv else 50
    if as_json:
        if columns:
            raise typer.BadParameter("--json has everything; leave --columns out")
        complaints: list[str] = []
        options.print_json(listing.objects(there, address, complaints, where=where, sort=sort, limit=count))
        options.warn(complaints)
        return
    names = [name.strip() for name in columns.split(",") if name.strip()] if columns else None
    width = None if as_csv else tables.terminal_width(sys.stdout)
    found = listing.listing(there, address, where=where, sort=sort, limit=count, columns=names, width=width)
    options.warn(found.complaints)
    if not found.table.rows and not as_csv:
        what = (f" on {address}" if address else "") + (f" with {where}" if where else "")
        print(f"no runs{what} in {there}" + ("" if where else "; python train.py makes one"))
        return
    options.print_table(found.table, as_csv)
    if found.left_out and not as_csv:
        kind = "more" if sort else "older"
        looked = " or not looked at" if where and not sort else ""
        print(f"{options.counted(found.left_out, f'{kind} run')} not shown{looked}; -n 0 shows all")
    if address is not None and "sweep-" in address and not where and not as_csv:
        for line in listing.without_run(there, address):
            print(f"without a run: {tables.clean(line)}")
    if found.more_params and not as_csv:
        print(_vary_too(found.more_params, width))


def _vary_too(params: list[str], width: int | None) -> str:
    """The hyperparameters for which there was no room; in a terminal on one line."""
    line = f"vary too (--columns shows them): {', '.join(params)}"
    count = len(params)
    while width is not None and len(line) > width and count:
        count -= 1
        named = f"{', '.join(params[:count])} … and " if count else ""
        line = f"vary too: {named}{len(params) - count} more: --columns"
    return line


def show(
    address: Annotated[str, options.address("Which run.")],
    once: Annotated[bool, typer.Option("--once", help="Print a live run only once.")] = False,
    as_json: options.AsJson = False,
    outputs: options.Outputs = None,
) -> None:
    """Show one run: where it came from, its best checkpoint, epochs, checkpoints, files and hyperparameters. A live run
    is shown anew every second, until it ends or you press Ctrl-C.

    \b
    Example: daypoint show 20260328/1415
    Example: daypoint show last --once
    """
    from daypoint.base import tables
    from daypoint.reading import showing
    from daypoint.record import catalog

    there = day.outputs_directory(outputs)
    run = catalog.find_one(address, there)
    if as_json:
        sys.stdout.write(tables.as_json_object(showing.to_dict(run)))
        return
    colours = tables.has_colours(sys.stdout)
    if run.is_live and not once and sys.stdout.isatty():
        from daypoint.cli.watching import watch

        run = watch(run, there, colours=colours)
    print(showing.page(run, colours=colours))


def compare(
    addresses: Annotated[list[str], options.address("Runs, days or sweeps.")],
    where: options.Where = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    html: Annotated[Path | None, typer.Option(help="Write one HTML file that works on its own.")] = None,
    outputs: options.Outputs = None,
) -> None:
    """Compare runs side by side: what differs in config, code, versions and data, and what they measured. Of more than 12
    runs, the newest are compared.

    \b
    Example: daypoint compare 20260328/1415 20260328/1620
    Example: daypoint compare 20260327 20260328 --where 'status=finished and best>0.9' --html days.html
    """
    from daypoint.base import tables
    from daypoint.reading import compare

    options.one_form(json=as_json, csv=as_csv, html=html is not None)
    found = compare.compare(day.outputs_directory(outputs), addresses, where=where)
    options.warn(found.complaints)
    if found.remark:
        print(found.remark, file=sys.stderr)
    if as_json:
        sys.stdout.write(tables.as_json_object(found.to_dict()))
    elif as_csv:
        options.print_table(found.table(), as_csv=True)
    elif html is not None:
        with options.writing(html):
            html.write_text(
                tables.as_html(f"daypoint compare {' '.join(addresses)}", found.tables()), "utf-8"
            )
        print(html)
    else:
        colours, width = tables.has_colours(sys.stdout), tables.terminal_width(sys.stdout)
        if width is not None:
            found = replace(found, runs=day.shortened(found.runs))
        parts = [part for _, table in found.tables() for part in tables.fitting(table, width)]
        print("\n\n".join(tables.text(table, colours=colours, longest=longest) for table, longest in parts))


def trend(
    metric: Annotated[str, typer.Argument(help="A metric, for its best epoch; or last(…), min(…) of one.")],
    address: Annotated[str | None, options.address("A range of days; by default every day.")] = None,
    where: options.Where = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    picture: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Also draw it.")] = None,
    outputs: options.Outputs = None,
) -> None:
    """Show a metric over days: for each day, how many runs measured it, their spread, and the best one. Runs that
    `daypoint reproduce` made are left out. With -o it is also drawn, as a .png, .svg or .pdf file.

    \b
    Example: daypoint trend val/accuracy 'last 30 days'
    Example: daypoint trend val/loss 20260301..20260328 --where 'model=cnn' -o trend.svg
    """
    from daypoint.reading.trend import trend

    options.one_form(json=as_json, csv=as_csv)
    found = trend(day.outputs_directory(outputs), metric, address, where=where)
    options.warn(found.complaints)
    if as_json:
        table = found.table()
        options.print_json(dict(zip(table.columns, row, strict=True)) for row in table.rows)
    elif as_csv or found.days:
        if not as_csv:
            print(f"{found.metric}, {found.mode} is best")
        options.print_table(found.table(), as_csv)
    else:
        print(f"no run{f' on {address}' if address else ''} measured {metric}")
    if picture is not None and found.days:
        from daypoint.plots.trend import draw_trend

        with options.writing(picture):
            draw_trend(found.days, found.metric, picture)
        print(picture, file=sys.stderr)
