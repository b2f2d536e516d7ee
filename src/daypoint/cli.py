"""The command `daypoint`. Each command imports what it needs inside itself, so `daypoint --help` is quick.

Exit codes: 0 done, 1 the thing asked for cannot be had (the message says why), 2 the command line is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from daypoint.catalog import StoredRun

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Runs filed under their day. An ADDRESS is a day (20260328, today), a run (20260328/1415), a path, or a run uid.",
)

Outputs = Annotated[
    Path | None,
    typer.Option(
        help="The outputs directory; by default the one of the project you stand in.",
        envvar="DAYPOINT_OUTPUTS",
    ),
]


def main() -> None:
    """Run the command line; an error of daypoint's own is one message and exit code 1."""
    from daypoint.errors import DaypointError

    try:
        app()
    except DaypointError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # `daypoint ls | head`
        sys.stderr.close()
        sys.exit(0)


def _outputs(given: Path | None) -> Path:
    from daypoint import day

    return given.absolute() if given is not None else day.project_root(Path.cwd()) / "outputs"


@app.command()
def ls(
    day: Annotated[str | None, typer.Argument(help="A day; by default every day.")] = None,
    limit: Annotated[
        int, typer.Option("-n", min=0, help="How many of the newest runs to show; 0 for all.")
    ] = 50,
    outputs: Outputs = None,
) -> None:
    """List runs, the newest last.

    \b
    Example: daypoint ls today
    """
    from rich.console import Console
    from rich.table import Table

    from daypoint import catalog
    from daypoint.console import number
    from daypoint.day import parse_day

    where = _outputs(outputs)
    runs, complaints = catalog.list_runs(where, parse_day(day) if day else None)
    for complaint in complaints:
        print(f"warning: {complaint}", file=sys.stderr)
    if not runs:
        what = f" on {day}" if day else ""
        print(f"no runs{what} in {where}; python train.py makes one")
        return
    shown = runs[-limit:] if limit else runs
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "status", "name", "epochs", "steps"):
        table.add_column(
            column, no_wrap=column != "name", justify="right" if column in ("epochs", "steps") else "left"
        )
    names = _metric_columns(shown)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for run in shown:
        metrics = run.metrics
        table.add_row(
            run.address,
            run.status,
            _short_name(run),
            str(len(run.epochs)),
            str(run.steps),
            *(number(metrics[name]) if name in metrics else "" for name in names),
        )
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 400)  # a narrow terminal wraps the lines; no number is ever cut
    console.print(table)
    if len(shown) < len(runs):
        print(f"{len(runs) - len(shown)} older runs not shown; -n 0 shows all")


def _metric_columns(runs: list[StoredRun]) -> list[str]:
    """The monitored metrics first, then loss and what else was validated; at most four."""
    monitored = [run.record["monitor"]["metric"] for run in runs if run.record["monitor"]]
    seen = [name for run in runs for name in run.metrics]
    rest = [name for name in seen if name == "loss" or name.startswith("val")]
    return list(dict.fromkeys(name for name in monitored + rest if name in seen))[:4]


def _short_name(run: StoredRun) -> str:
    """The name without the day and time that stand in the first column anyway."""
    name = run.record["name"]
    return name.partition(" ")[2] or name if name.startswith(run.record["day"]) else name


@app.command()
def show(address: Annotated[str, typer.Argument(help="Which run.")], outputs: Outputs = None) -> None:
    """Show one run: who it is, its epochs, checkpoints and files.

    \b
    Example: daypoint show 20260328/1415
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from daypoint import catalog, keys
    from daypoint.console import number

    run = catalog.find_one(address, _outputs(outputs))
    record, attempt = run.record, run.record["attempts"][-1]
    console = Console(highlight=False, soft_wrap=True, markup=False)

    def row(label: str, text: object) -> None:
        console.print(Text(f"{label:<12}", "bold"), end="")
        console.print(str(text), markup=False)

    row("run", f"{run.address}  (uid {record['uid']})")
    row("name", record["name"])
    row("status", run.status + (" (now)" if run.is_live else ""))
    row("directory", run.directory)
    row("started", f"{record['started']} on {record['host']}")
    if attempt["seconds"] is not None:
        row("took", f"{attempt['seconds']:.1f} s, {run.steps} steps")
    if error := attempt["error"]:
        row("error", f"{error['type']}: {error['message']}")
    if again := record.get("reproduces"):
        row("reproduces", f"{again['address']}  (uid {again['uid']})")
    git = record["git"]
    row("git", git["reason"] or f"{git['commit']}{' with uncommitted changes' if git['dirty'] else ''}")
    if data := record["data"]:
        row("data", f"{data['name']}, {data['rows']} rows, fingerprint {data['fingerprint']}")
    row(
        "mlflow",
        f"experiment {record['experiment']} in {record['tracking_uri'] or 'nowhere (tracking is off)'}",
    )
    if attempt["overrides"]:
        row("overrides", " ".join(attempt["overrides"]))

    if run.epochs:
        names = list(
            dict.fromkeys(name for epoch in run.epochs for name in (*epoch["stats"], *epoch["metrics"]))
        )
        table = Table(box=None, pad_edge=False, header_style="bold", title="epochs", title_justify="left")
        for column in ("epoch", "steps", *names):
            table.add_column(column, justify="right")
        for epoch in run.epochs:
            cells = []
            for name in names:
                of = epoch["stats"].get(name)
                cells.append(number(of["mean"]) if of else number(epoch["metrics"].get(name)))
            table.add_row(str(epoch["epoch"]), str(epoch["steps"]), *cells)
        console.print()
        console.print(table)
    if run.checkpoints:
        marks: dict[str, list[str]] = {}
        for name in ("best", "last"):
            if target := run.pointer(name):
                marks.setdefault(target, []).append(name)
        console.print(Text("\ncheckpoints", "bold"))
        for path in run.checkpoints:
            console.print(f"  {path.name}  {' '.join(marks.get(path.name, []))}", markup=False)
    console.print(Text("\nhyperparameters", "bold"))
    for key, value in keys.flatten(record["config"]).items():
        console.print(f"  {key} = {value}", markup=False)


@app.command()
def verify(address: Annotated[str, typer.Argument(help="Days or runs.")], outputs: Outputs = None) -> None:
    """Check every file of a run, or of a day's runs, against what it should be. Exit code 1 if anything is wrong.

    \b
    Example: daypoint verify 20260328
    """
    from daypoint import catalog
    from daypoint.verify import verified_bytes, verify_run

    wrong = 0
    for run in catalog.find(address, _outputs(outputs)):
        problems = verify_run(run)
        wrong += len(problems)
        size = f"{len(run.checkpoints)} checkpoints, {verified_bytes(run) / 1e6:.1f} MB"
        print(f"{run.address}  {'ok' if not problems else f'{len(problems)} problems'}  ({size})")
        for problem in problems:
            print(f"  {problem}")
    if wrong:
        raise typer.Exit(1)


@app.command()
def reproduce(
    address: Annotated[str, typer.Argument(help="Which run; of a day or a sweep, the run of its model.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to change in the recorded config all the same, such as trainer.device=cpu."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="End after so many batches, and compare these.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="A metric to leave out, such as one that measures time; repeatable."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run nothing: compare with this run.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="The script to run; by default the one that made the run.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as JSON on stdout, all else on stderr.")
    ] = False,
    outputs: Outputs = None,
) -> None:
    """Run a recorded training again, with its recorded config, as a new run, and compare every value of every batch.

    Exit code: 0 identical, 1 different, 2 it could not be run.

    \b
    Example: daypoint reproduce 20260328/1415 --steps 100
    """
    from daypoint import catalog, equality, files, frozen
    from daypoint import reproduce as again
    from daypoint import script as scripts
    from daypoint.errors import DaypointError

    where = _outputs(outputs)
    told = sys.stderr if as_json else sys.stdout
    try:
        planned = again.plan(again.find(address, where), steps)
        original, caution = planned.run, []
        if against is not None:
            if overrides or script:
                raise typer.BadParameter("--against runs nothing: leave the script and the overrides out")
            made = catalog.find_one(against, where)
        else:
            found = scripts.find(original, where, script)
            caution = again.warnings(original, found, where)
            for line in caution:
                print(f"warning: {line}", file=sys.stderr)
            cfg = frozen.freeze(original, planned.config, found, where, overrides or ())
            print(f"reproducing {original.address} with {found}", file=told, flush=True)
            made = again.run_again(
                planned, found, cfg, where, overrides or (), sys.stderr if as_json else None
            )
        result = again.compare(planned, made, ignore or ())
    except DaypointError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        limits = {"batches_asked": planned.batches, "because": planned.why, "warnings": caution}
        document = {"original": original.address, "run": made.address, **limits, **result.to_dict()}
        sys.stdout.write(files.dumps(document).decode())
    else:
        print(f"\n{original.address} and {made.address}")
        if planned.batches is not None:
            print(f"compared: the first {planned.batches} batches ({planned.why})")
        if made.status != "FINISHED":
            print(f"the other run was {made.status} after {made.steps} steps")
        for line in equality.report(result):
            print(line)
    raise typer.Exit(0 if result.identical else 1)


@app.command()
def sync(
    addresses: Annotated[list[str] | None, typer.Argument(help="Days or runs.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run in the outputs directory.")] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Put the project's SQLite store aside and make it anew from --all."),
    ] = False,
    uri: Annotated[
        str | None, typer.Option(help="Another MLflow store than the one each run was made for.")
    ] = None,
    outputs: Outputs = None,
) -> None:
    """Send to MLflow what is not there yet; any number of times.

    \b
    Example: daypoint sync today
    """
    from daypoint import catalog, courier, day, store

    where = _outputs(outputs)
    if rebuild and addresses:
        raise typer.BadParameter("--rebuild is for all runs; leave the ADDRESS out")
    if not rebuild and bool(addresses) == all_runs:
        raise typer.BadParameter("say which runs: an ADDRESS, or --all")
    root = day.project_root(Path.cwd())
    if rebuild:
        if live := [run.address for run in catalog.list_runs(where)[0] if run.is_live]:
            raise typer.BadParameter(f"--rebuild: {', '.join(live)} is being trained now; wait for its end")
        target = store.tracking_uri(uri, root)
        if (aside := store.put_aside(target)) is not None:
            print(f"the store as it was: {aside}")
        uri = target
    if rebuild:
        runs, _ = catalog.list_runs(where)
        directories = [
            run.directory for run in runs if courier.store_of(run.directory, run.record)[0] == target
        ]
    elif all_runs:
        directories = day.run_directories(where)
    else:
        directories = [run.directory for address in addresses or () for run in catalog.find(address, where)]
    report = courier.sync(directories, uri=store.tracking_uri(uri, root) if uri else None)
    for line in report.lines:
        print(line)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
    uri: Annotated[str | None, typer.Option(help="The MLflow store; by default the project's own.")] = None,
) -> None:
    """Open MLflow on the project's store, until Ctrl-C.

    \b
    Example: daypoint ui --port 5001
    """
    import os
    import socket

    from daypoint import day, store

    root = day.project_root(Path.cwd())
    address = store.tracking_uri(uri, root)
    if address.startswith(("http://", "https://")):
        print(f"MLflow runs at {address}")
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            print(f"error: port {port}: {error.strerror}; try daypoint ui --port {port + 1}", file=sys.stderr)
            raise typer.Exit(1) from None
    print(f"MLflow: http://127.0.0.1:{port}  (store {address}; Ctrl-C ends it)", flush=True)
    store.prepare(address)
    # The server looks for uvicorn on PATH, which an environment that was not activated does not offer.
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": scripts, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    arguments = ["--backend-store-uri", address, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    if artifacts := store.artifact_root(address, root):
        arguments += ["--default-artifact-root", artifacts]
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", "server", *arguments], environment)


@app.command()
def plot(
    addresses: Annotated[list[str], typer.Argument(help="Days, sweeps or runs; all in one picture.")],
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
            help="Draw an exponential moving average too, such as 0.9: the value before counts so much.",
        ),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Of one sweep: what each job was worth, over the values tried.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the file when it is there.")] = False,
    outputs: Outputs = None,
) -> None:
    """Draw learning curves: every batch, the mean, least and greatest of each epoch; prints the file it wrote.

    \b
    Example: daypoint plot today -m loss -o curves.html
    """
    from daypoint.errors import DaypointError

    where = _outputs(outputs)
    if smooth is not None and not 0 <= smooth < 1:
        raise typer.BadParameter(
            f"--smooth: expected a weight from 0 to below 1, such as 0.9, found {smooth:g}"
        )
    if output is not None and output.suffix.lower() not in (".png", ".svg", ".pdf", ".html"):
        raise typer.BadParameter(f"-o {output}: expected a file that ends in .png, .svg, .pdf or .html")
    if output is not None and not output.absolute().parent.is_dir():
        raise typer.BadParameter(f"-o {output}: there is no directory {output.absolute().parent}")
    try:
        if values:
            path = _plot_sweep(addresses, output, where)
        else:
            path = _plot_curves(addresses, metric or [], output, where, log, smooth)
    except OSError as error:
        if isinstance(error, DaypointError):
            raise
        raise DaypointError(
            f"{error.filename or output or Path.cwd()}: {error.strerror}; say with -o where the picture can be written"
        ) from error
    print(path)
    if open_it:
        typer.launch(str(path.absolute()))


def _plot_curves(
    addresses: list[str],
    metrics: list[str],
    output: Path | None,
    outputs: Path,
    log: bool,
    smooth: float | None,
) -> Path:
    from daypoint import catalog, curves, curves_page, day, plots
    from daypoint.errors import AddressError

    found = {run.directory: run for address in addresses for run in catalog.find(address, outputs)}
    if len(found) > plots.MOST_RUNS:
        raise AddressError(
            f"{' '.join(addresses)}: expected at most {plots.MOST_RUNS} runs in a picture, found {len(found)}; "
            f"name fewer, such as {' '.join(run.address for run in list(found.values())[-2:])}"
        )
    runs = [
        curves.load(run.files, run.record, address=run.address, status=run.status, metrics=metrics)
        for run in found.values()
    ]
    if metrics:
        curves.check_metrics(metrics, runs)
    else:
        metrics = list(dict.fromkeys(name for run in runs for name in run.curves)) or ["loss"]
    for run in runs:
        if missing := [name for name in metrics if name not in run.curves]:
            print(f"warning: {run.address} has no {', '.join(missing)}", file=sys.stderr)
    path = output or Path(day.picture_name("curves", [run.address for run in runs]))
    if path.suffix.lower() == ".html":
        curves_page.write_page(runs, metrics, path, title=plots.title(runs), log=log, smoothing=smooth)
    else:
        plots.draw_curves(runs, metrics, path, log=log, smoothing=smooth)
    return path


def _plot_sweep(addresses: list[str], output: Path | None, outputs: Path) -> Path:
    from daypoint import day, sweep, sweep_plot

    if len(addresses) != 1:
        raise typer.BadParameter(f"--values: expected one sweep, found {len(addresses)} addresses")
    directory = sweep.find(addresses[0], outputs)
    path = output or Path(day.picture_name("sweep", [day.address_in_day(directory, directory.parent.name)]))
    sweep_plot.draw_sweep(sweep.read(directory), path)
    return path
