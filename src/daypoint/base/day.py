"""The names of directories and files: day tags, what a run directory contains, claiming a new directory, run addresses.

Every file and directory name of daypoint is written here and nowhere else. A day is `20260328`, in the
configured time zone, taken from the one instant at which the run started; midnight, daylight saving and the
reader's own time zone change nothing afterwards. Runs that start in the same instant get different directories, because
`mkdir` succeeds for exactly one of those who ask for the same name. This module reads no file's content.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from daypoint.base.errors import AddressError, ConfigError, RunError

DAY = re.compile(r"(\d{4})(-?)(\d{2})\2(\d{2})")
_RUN = re.compile(r"\d{6}-\d{6}")
_ROOT_MARKERS = ("pyproject.toml", ".git", "outputs")


# ---------------------------------------------------------------- days and instants


def zone(name: str) -> tzinfo | None:
    """The time zone of that name; `local` is the machine's own.

    Raises:
        ConfigError: there is no such zone.
    """
    if name == "local":
        return None  # what datetime.astimezone takes for the machine's own zone
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(
            f"tracking.timezone: expected 'local', 'UTC' or a name such as 'Europe/Berlin', found {name!r}"
        ) from None


def now(timezone: str = "local") -> datetime:
    """This instant, aware of its time zone. Everything that a run says about its start comes from one such call."""
    return datetime.now().astimezone(zone(timezone))


def tag(moment: datetime | date) -> str:
    """The day tag, such as `20260328`."""
    return f"{moment:%Y%m%d}"


def parse_day(text: str, *, today: date | None = None) -> str:
    """The day tag for `20260328`, `2026-03-28`, `today` or `yesterday`.

    Raises:
        AddressError: it is none of these, or no day of the calendar.
    """
    today = today or date.today()
    if text == "today":
        return tag(today)
    if text == "yesterday":
        return tag(today - timedelta(days=1))
    if match := DAY.fullmatch(text):
        year, _, month, day = match.groups()
        try:
            return tag(date(int(year), int(month), int(day)))
        except ValueError:
            pass
    raise AddressError(f"expected a day such as 20260328, 2026-03-28, today or yesterday, found {text!r}")


def is_day(text: str) -> bool:
    """Whether `parse_day` takes a text."""
    try:
        parse_day(text)
    except AddressError:
        return False
    return True


# ---------------------------------------------------------------- names inside a run


def _file(name: str) -> property:
    """The path of a file in the directory of its owner; `{day}` in the name stands for the day tag."""
    return property(lambda owner: owner.directory / name.format_map(vars(owner)))


@dataclass(frozen=True)
class RunFiles:
    """The paths of everything in one run directory.

    Args:
        directory: the run directory, absolute.
        day: its day tag, part of the file names.
    """

    directory: Path
    day: str

    run = _file("run.json")
    config = _file("config_{day}.yaml")
    journal = _file("journal.jsonl")
    # The last batches of a live run; gone when it has ended.
    spool = _file("journal.spool")
    train_log = _file("train_log_{day}.json")
    checkpoints = _file("checkpoints")
    # Made only when the courier has something to complain about.
    courier_log = _file("courier.log")
    # The run's model as MLflow serves it; made by `daypoint package`.
    package = _file("mlflow_model")

    def config_of(self, attempt: int) -> Path:
        """The config of an attempt."""
        return self.directory / f"config_{self.day}{_suffix(attempt)}.yaml"

    def uncommitted_diff(self, attempt: int = 1) -> Path:
        """What the code of an attempt had and its commit has not; made only when there was something."""
        return self.directory / f"uncommitted{_suffix(attempt)}.diff"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step{step:06d}"

    def pointer(self, name: str) -> Path:
        """The pointer file `last` or `best`."""
        return self.checkpoints / f"{name}.json"


def _suffix(attempt: int) -> str:
    return "" if attempt == 1 else f"_attempt{attempt}"


@dataclass(frozen=True)
class CheckpointFiles:
    """The paths of the files of one checkpoint."""

    directory: Path
    day: str

    weights = _file("model_{day}.safetensors")
    card = _file("model_{day}.json")
    state_tensors = _file("state_{day}.safetensors")
    state = _file("state_{day}.state.json")


@dataclass(frozen=True)
class PackageFiles:
    """The paths of the files of one packaged model; the names are MLflow's or ours where MLflow prescribes none.

    Args:
        directory: an MLflow model directory, such as `RunFiles.package`.
    """

    directory: Path

    model = _file("MLmodel")
    # Which checkpoint it was made from, and size and SHA-256 of every other file.
    manifest = _file("daypoint.json")
    example = _file("input_example.json")
    # Two rows that can be given to `mlflow models predict -i` as they are.
    serving_example = _file("serving_input_example.json")


# ---------------------------------------------------------------- the project and its directories


def project_root(start: Path | None = None) -> Path:
    """The project that a script or a shell stands in: the nearest directory at or above `start` that has a
    pyproject.toml, a .git or an outputs/ in it; `start` itself if there is none.

    Args:
        start: where to look from; by default the directory of the running script, or the working directory
            when there is no script or it is an installed command.
    """
    if start is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        start = Path(os.path.abspath(script)).parent if script else Path.cwd()
        if start.is_relative_to(sys.prefix):
            start = Path.cwd()
    start = Path(os.path.abspath(start))
    for directory in (start, *start.parents):
        if any((directory / marker).exists() for marker in _ROOT_MARKERS):
            return directory
    return start


def outputs_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The outputs directory: as given, else $DAYPOINT_OUTPUTS, else of the project at or above the working directory."""
    given = given if given is not None else os.environ.get("DAYPOINT_OUTPUTS")
    return Path(given).expanduser().absolute() if given else project_root(Path.cwd()) / "outputs"


def claim(outputs: Path, moment: datetime, prefix: str = "") -> Path:
    """Make a directory for a run that started at `moment`, for this caller alone.

    `outputs/20260328/141502-123456`: when the name is taken, the next microsecond is tried, so names stay
    unique and in order of time.

    Args:
        outputs: absolute path of the outputs directory; made if missing.
        moment: an aware datetime.
        prefix: `sweep-` for a sweep.

    Raises:
        RunError: the directory cannot be made; names the path.
    """
    parent = outputs / tag(moment)
    try:
        for _ in range(1_000_000):
            directory = parent / f"{prefix}{moment:%H%M%S-%f}"
            # Again each time: a program that opened no run removes the empty day it has made.
            parent.mkdir(parents=True, exist_ok=True)
            try:
                directory.mkdir()
                return directory
            except FileNotFoundError:
                continue
            except FileExistsError:
                later = moment + timedelta(microseconds=1)
                # Past midnight the run still belongs to the day on which it started.
                moment = (
                    later if later.date() == moment.date() else moment.replace(hour=0, minute=0, second=0)
                )
    except OSError as error:
        raise RunError(
            f"{error.filename or parent}: cannot make a run directory: {error.strerror}; "
            "set tracking.outputs to a directory that can be written"
        ) from error
    raise RunError(f"{parent}: no free run directory at {moment:%H:%M:%S}")


# ---------------------------------------------------------------- addresses


def sweep_file(directory: Path) -> Path:
    """The manifest of a sweep directory."""
    return directory / "sweep.json"


def promoted_file(outputs: Path, day: str) -> Path:
    """Where a day's promoted models are written down."""
    return outputs / day / "promoted.json"


def outputs_of(directory: Path, day: str) -> Path | None:
    """The outputs directory that a run is filed in; None when it lies elsewhere."""
    return next((parent.parent for parent in directory.parents if parent.name == day), None)


def is_run(directory: Path) -> bool:
    """Whether a directory holds a run (it has a run.json; whether that can be read is for who reads it)."""
    return (directory / "run.json").exists()


def run_directories(outputs: Path, day: str | None = None) -> list[Path]:
    """Every run directory under `outputs`, jobs of sweeps included, oldest first; job 10 comes after job 2."""
    days = [outputs / day] if day else sorted(outputs.glob("[0-9]" * 8))
    found: list[Path] = []
    for directory in days:
        if not directory.is_dir():
            continue
        with os.scandir(directory) as entries:
            names = sorted(
                (e.name for e in entries if e.is_dir()), key=lambda name: name.removeprefix("sweep-")
            )
        for name in names:
            if name.startswith("sweep-"):
                found.extend(_jobs(directory / name))
            elif is_run(directory / name):
                found.append(directory / name)
    return found


def _jobs(sweep: Path) -> list[Path]:
    return sorted((job for job in sweep.iterdir() if is_run(job)), key=_natural)


def _natural(path: Path) -> str:
    """A sort key under which job 10 comes after job 2."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), path.name)


def address_of(directory: Path, outputs: Path) -> str:
    """How a run is called: `20260328/141502-123456`, or its path when it lies elsewhere."""
    if directory.is_relative_to(outputs):
        parts = directory.relative_to(outputs).parts
        if len(parts) > 1 and len(parts[0]) == 8 and parts[0].isdigit():
            return "/".join(parts)
    return str(directory)


def shortened(addresses: Sequence[str]) -> list[str]:
    """The same without the microseconds, where they still tell these runs apart: `20260328/141502`."""
    short = [re.sub(r"(?<=/)(sweep-)?(\d{6})-\d{6}(?=/|$)", r"\1\2", address) for address in addresses]
    return [a if short.count(s) > 1 else s for a, s in zip(addresses, short, strict=True)]


def as_path(address: str) -> Path | None:
    """The absolute path that an address may be; None for what cannot be one: too long, `~nobody`, a NUL in it."""
    try:
        path = Path(os.path.abspath(Path(address).expanduser()))
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def address_in_day(directory: Path, day: str) -> str:
    """`address_of` for who knows the run's day tag, but not where the outputs are."""
    outputs = outputs_of(directory, day)
    return str(directory) if outputs is None else address_of(directory, outputs)


def picture_name(kind: str, addresses: Sequence[str]) -> str:
    """What a picture of these runs is called: `curves_20260328-141502.png`, of several `curves_20260328.png`, of several
    days `curves_20260328-20260330.png`.

    Args:
        kind: `curves` or `sweep`.
        addresses: at least one.
    """
    if len(addresses) == 1:
        parts = addresses[0].split("/")[-3:]
        day, *rest = parts if DAY.fullmatch(parts[0]) else parts[-2:]
        times = [_RUN.sub(lambda match: match[0][:6], part.removeprefix("sweep-")) for part in rest]
        return f"{kind}_{'-'.join([day, *times])}.png"
    days = sorted({next((part for part in a.split("/") if DAY.fullmatch(part)), "runs") for a in addresses})
    return f"{kind}_{'-'.join(dict.fromkeys([days[0], days[-1]]))}.png"


def matching(address: str, outputs: Path) -> list[Path]:
    """The run directories that an address names, oldest first; empty if it names none.

    An address is a day, a day and the beginning of a time (`20260328/1415`), a sweep or one of its jobs
    (`20260328/sweep-1502/3`), or a path to the directory of a run, a sweep or a day. Run uids are for `daypoint.record.catalog`, which reads
    run.json.

    Raises:
        AddressError: the day in it is no day.
    """
    path = as_path(address)
    if path is not None and is_run(path):
        return [path]
    if path is not None and sweep_file(path).is_file():
        return _jobs(path)
    first, _, rest = address.replace(os.sep, "/").rstrip("/").partition("/")
    if not (DAY.fullmatch(first) or first in ("today", "yesterday")):
        is_day = path is not None and DAY.fullmatch(path.name) is not None
        return run_directories(path.parent, path.name) if is_day else []
    day = parse_day(first)
    runs = run_directories(outputs, day)
    if not rest:
        return runs
    time, _, job = rest.partition("/")
    if job:
        return [run for run in runs if run.name == job and run.parent.name.startswith(time)]
    return [run for run in runs if run.relative_to(outputs / day).parts[0].startswith(time)]
