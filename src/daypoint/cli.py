"""The command `daypoint`: reads the command line and prints. What is printed is made elsewhere.

Exit codes: 0 done, 1 the thing asked for cannot be had (the message says why), 2 the command line is wrong.
Each command imports what it needs inside itself, so `daypoint --help` is quick. One number: 0.1 s of processor time before a
command begins, half of it typer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from daypoint import reading
from daypoint.options import Outputs, counted
from daypoint.options import outputs_from as _outputs

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


def main() -> None:
    """Run the command line; an error of daypoint's own is one message and exit code 1."""
    from daypoint.errors import DaypointError

    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character shows another one
        if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="daypoint")
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


for command in (reading.ls, reading.show, reading.compare, reading.trend):
    app.command()(command)


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
        size = f"{counted(len(run.checkpoints), 'checkpoint')}, {verified_bytes(run) / 1e6:.1f} MB"
        print(f"{run.address}  {counted(len(problems), 'problem') if problems else 'ok'}  ({size})")
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
