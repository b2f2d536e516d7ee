"""The command `daypoint`: reads the command line and prints. What is printed is made elsewhere.

Exit codes: 0 done, 1 the thing asked for cannot be had (the message says why), 2 the command line is wrong.
Each command imports what it needs inside itself, so `daypoint --help` is quick. One number: 0.1 s of processor time before a
command begins, half of it typer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from daypoint.tables import Table

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "Runs filed under their day. An ADDRESS is a day (20260328, today), a range of days (20260301..20260328, "
        "'last 7 days'), a run (20260328/1415), a sweep (20260328/sweep-1502), last, a path, or a run uid.\n\n"
        "Exit codes: 0 done, 1 what was asked for cannot be had, 2 the command line is wrong."
    ),
)

Outputs = Annotated[
    Path | None,
    typer.Option(
        help="The outputs directory; by default the one of the project you stand in.",
        envvar="DAYPOINT_OUTPUTS",
    ),
]


def _query(text: str | None) -> str | None:
    from daypoint import query
    from daypoint.errors import ConfigError

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
        help="Which runs, such as 'optimizer.lr>=0.01 and val/accuracy>0.9 and status=finished'.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="As CSV, with every digit.")]


def main() -> None:
    """Run the command line; an error of daypoint's own is one message and exit code 1."""
    from daypoint.errors import DaypointError

    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character shows another one
        if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")
    try:
        app()
    except DaypointError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # `daypoint ls | head`
        sys.stderr.close()
        sys.exit(0)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"daypoint {version('daypoint')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _outputs(given: Path | None) -> Path:
    from daypoint import day

    return given.absolute() if given is not None else day.project_root(Path.cwd()) / "outputs"


def _print(table: Table, as_csv: bool) -> None:
    from daypoint import tables

    if as_csv:
        sys.stdout.write(tables.as_csv(table))
    else:
        print(tables.text(table, colours=tables.has_colours(sys.stdout)))


def _print_json(rows: Iterable[dict[str, Any]]) -> None:
    from daypoint import tables

    for piece in tables.as_json(rows):
        sys.stdout.write(piece)


def _warn(complaints: Iterable[str]) -> None:
    for complaint in complaints:
        print(f"warning: {complaint}", file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _one_form(**given: bool) -> None:
    if sum(given.values()) > 1:
        raise typer.BadParameter(f"expected one of {', '.join(f'--{name}' for name in given)}")


@app.command()
def ls(
    address: Annotated[
        str | None, typer.Argument(help="A day, a range of days or a sweep; by default every day.")
    ] = None,
    where: Where = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Smallest first; with a minus before it (--sort=-best) largest first."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", min=0, help="How many: the newest, or the first as sorted; 0 for all.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="These columns instead of the usual ones.")
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    outputs: Outputs = None,
) -> None:
    """List runs, the newest last: the hyperparameters that vary, the best and the last metrics. 50 of them, in files all.

    A query asks for hyperparameters (optimizer.lr, or lr if that is clear), metrics (val/accuracy is the last value; best(…),
    min(…), max(…), first(…)) and facts (status, day, model, steps, seconds, host, git.commit, tags.team, …) with = != < <= > >=
    ~ in, and, or, not. A run that has no such name matches neither a question nor its opposite.

    \b
    Example: daypoint ls today
    Example: daypoint ls 'last 7 days' --where 'optimizer.lr in [0.1, 0.01] and not model=cnn' --sort=-best -n 10
    Example: daypoint ls 20260328/sweep-1502 --columns 'address,optimizer.lr,best(val/accuracy)' --csv
    """
    from daypoint import listing

    _one_form(json=as_json, csv=as_csv)
    there = _outputs(outputs)
    count = limit if limit is not None else 0 if as_json or as_csv else 50
    if as_json:
        if columns:
            raise typer.BadParameter("--json has everything; leave --columns out")
        complaints: list[str] = []
        _print_json(listing.objects(there, address, complaints, where=where, sort=sort, limit=count))
        _warn(complaints)
        return
    names = [name.strip() for name in columns.split(",") if name.strip()] if columns else None
    found = listing.listing(there, address, where=where, sort=sort, limit=count, columns=names)
    _warn(found.complaints)
    if not found.table.rows and not as_csv:
        what = (f" on {address}" if address else "") + (f" with {where}" if where else "")
        print(f"no runs{what} in {there}" + ("" if where else "; python train.py makes one"))
        return
    _print(found.table, as_csv)
    if found.left_out and not as_csv:
        kind = "more" if sort else "older"
        looked = " or not looked at" if where and not sort else ""
        print(f"{_count(found.left_out, f'{kind} run')} not shown{looked}; -n 0 shows all")
    if found.more_params and not as_csv:
        print(f"vary too (--columns shows them): {', '.join(found.more_params)}")


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
