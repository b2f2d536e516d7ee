"""The command `daypoint` with all its subcommands. It reads the command line and prints; other wings do the work.

Exit codes: 0 done, 1 what was asked for cannot be had (the message says why), 2 the command line is wrong.
Each command imports what it needs inside itself, so `daypoint --help` starts fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daypoint.base import day
from daypoint.cli import drawing, options, reading

if TYPE_CHECKING:
    from daypoint.models.publish import Published

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
    from daypoint.base.errors import DaypointError

    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character shows another one
        if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="daypoint")
    except DaypointError as error:
        print(f"error: {_said(error)}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # `daypoint ls | head`
        sys.stderr.close()
        sys.exit(0)


def _said(error: Exception) -> str:
    """What an error says, with the option for what is an argument in Python."""
    return str(error).replace('experiment="NAME"', "--experiment NAME")


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
def verify(
    address: Annotated[str, options.address("Days or runs.")], outputs: options.Outputs = None
) -> None:
    """Check that the files of runs are intact and agree with one another. Exit code 1 if anything is wrong.

    \b
    Example: daypoint verify 20260328
    """
    from daypoint.again.verify import verify_run
    from daypoint.record import catalog

    where, unreadable = day.outputs_directory(outputs), []
    wrong = 0
    found = catalog.directories(address, where)
    if not found:
        catalog.find(address, where)  # raises, and says what there is instead
    for run in catalog.each(found, where, unreadable):
        problems = verify_run(run)
        wrong += len(problems)
        found_wrong = options.counted(len(problems), "problem") if problems else "ok"
        print(f"{run.address}  {found_wrong}  ({options.counted(len(run.checkpoints), 'checkpoint')})")
        for problem in problems:
            print(f"  {problem}")
    for complaint in unreadable:
        print(complaint)
    if wrong or unreadable:
        raise typer.Exit(1)


Experiment = Annotated[str | None, typer.Option(help="The experiment, for a day that has several.")]


@app.command()
def reproduce(
    address: Annotated[str, options.address("A run; for a day or a sweep, the run of its model.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the recorded config.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Train and compare only so many batches.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A metric not to compare; repeatable.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Only compare with this run.")
    ] = None,
    script: Annotated[Path | None, typer.Option(help="The script, if not the one that made the run.")] = None,
    experiment: Experiment = None,
    as_json: options.AsJson = False,
    outputs: options.Outputs = None,
) -> None:
    """Train a recorded run again, with its recorded config, as a new run, and compare every value of every batch.

    Exit code: 0 identical, 1 different, 2 it could not be run. With --json only the result is on stdout.

    \b
    Example: daypoint reproduce 20260328/1415 --steps 100
    Example: daypoint reproduce 20260328/1415 trainer.device=cpu --ignore seconds
    """
    from daypoint.again import equality, frozen
    from daypoint.again import reproduce as again
    from daypoint.again import script as scripts
    from daypoint.base import files
    from daypoint.base.errors import DaypointError
    from daypoint.record import catalog

    where = day.outputs_directory(outputs)
    told = sys.stderr if as_json else sys.stdout
    try:
        planned = again.plan(again.find(address, where, experiment), steps)
        original, caution = planned.run, []
        if against is not None:
            if overrides or script:
                raise typer.BadParameter("--against runs nothing: leave the script and the overrides out")
            made = catalog.find_one(against, where)
        else:
            found = scripts.find(original, where, script)
            caution = again.warnings(original, found, where)
            options.warn(caution)
            cfg = frozen.freeze(original, planned.config, found, where, overrides or ())
            print(f"reproducing {original.address} with {found}", file=told, flush=True)
            made = again.run_again(
                planned, found, cfg, where, overrides or (), sys.stderr if as_json else None
            )
        result = equality.compare(
            original, made, config=planned.config, batches=planned.batches, ignore=ignore or ()
        )
    except DaypointError as error:
        print(f"error: {_said(error)}", file=sys.stderr)
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


Store = Annotated[str | None, typer.Option(help="The MLflow store; by default the one in the run's config.")]


@app.command()
def sync(
    addresses: Annotated[list[str] | None, typer.Argument(help="Days or runs.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run in the outputs directory.")] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Set the project's SQLite store aside and rebuild it from all runs."),
    ] = False,
    uri: Store = None,
    outputs: options.Outputs = None,
) -> None:
    """Send to MLflow what is not there yet. It can be repeated any number of times.

    \b
    Example: daypoint sync today
    """
    from daypoint.record import catalog
    from daypoint.tracking import store
    from daypoint.tracking import sync as sending

    where = day.outputs_directory(outputs)
    if rebuild and addresses:
        raise typer.BadParameter("--rebuild is for all runs; leave the ADDRESS out")
    if not rebuild and bool(addresses) == all_runs:
        raise typer.BadParameter("say which runs: an ADDRESS, or --all")
    uri = _absolute_store(uri)
    if rebuild:
        runs, _ = catalog.list_runs(where)
        if live := [run.address for run in runs if run.is_live]:
            raise typer.BadParameter(f"--rebuild: {', '.join(live)} is being trained now; wait for its end")
        uri = uri or store.tracking_uri(None, day.project_root(Path.cwd()))
        if (aside := store.put_aside(uri)) is not None:
            print(f"the store as it was: {aside}")
        directories = [run.directory for run in runs if store.of_run(run.directory, run.record)[0] == uri]
    elif all_runs:
        directories = day.run_directories(where)
    else:
        directories = [run.directory for address in addresses or () for run in catalog.find(address, where)]
    report = sending.sync(directories, uri=uri)
    for line in report.lines:
        print(line)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def package(
    address: Annotated[str, typer.Argument(help="A day, a run, or the path of a checkpoint.")],
    example: Annotated[
        Path | None,
        typer.Option(help="A .npy file with inputs [batch, …], for a config without data.input_shape."),
    ] = None,
    experiment: Experiment = None,
    uri: Store = None,
    outputs: options.Outputs = None,
) -> None:
    """Package the best checkpoint as an MLflow model. The best one of a day is registered as models:/EXPERIMENT@DAY.
    For a day with several experiments that is one model each; the exit code is 0 if at least one was packaged.

    \b
    Example: daypoint package 20260328
    """
    from daypoint.models.publish import publish

    where = day.outputs_directory(outputs)
    _find_modules_of(where)
    found = publish(address, where, experiment=experiment, uri=_absolute_store(uri), example=example)
    options.warn(f"not packaged: {complaint}" for complaint in found.complaints)
    _show(found.published)


@app.command()
def promote(
    address: Annotated[str, typer.Argument(help="A run, or the path of a checkpoint.")],
    experiment: Experiment = None,
    uri: Store = None,
    outputs: options.Outputs = None,
) -> None:
    """Make a run's best checkpoint the model of its day, whatever the other runs measured.

    \b
    Example: daypoint promote 20260328/1415
    """
    from daypoint.models.publish import promote

    where = day.outputs_directory(outputs)
    _find_modules_of(where)
    _show([promote(address, where, experiment=experiment, uri=_absolute_store(uri))])


def _show(found: list[Published]) -> None:
    print("\n\n".join("\n".join(published.lines) for published in found))
    missing = [published.complaint for published in found if published.uri and not published.registered]
    for complaint in missing:
        print(f"error: {complaint}", file=sys.stderr)
    if missing:
        raise typer.Exit(1)


def _find_modules_of(outputs: Path) -> None:
    """Let a `_target_` be a module beside train.py, as it was for the training; last, so that it hides nothing."""
    sys.path.append(str(day.project_root(outputs)))


def _absolute_store(uri: str | None) -> str | None:
    from daypoint.tracking import store

    return store.tracking_uri(uri, day.project_root(Path.cwd())) if uri else None


@app.command()
def ui(
    days: Annotated[
        list[str] | None, typer.Argument(help="Show the runs of these days; by default all.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
    uri: Annotated[str | None, typer.Option(help="The MLflow store; by default the project's own.")] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve MLflow's pages on the project's store, until Ctrl-C.

    \b
    Example: daypoint ui today yesterday --open
    """
    from daypoint.tracking import store
    from daypoint.tracking.ui import serve

    root = day.project_root(Path.cwd())
    tags = [day.parse_day(text) for text in days or ()]
    raise typer.Exit(serve(store.tracking_uri(uri, root), root, port, tags, open_browser))


app.command()(drawing.plot)
