"""Connect daypoint to a Hydra app: dated run directories, a check of the config before anything is written, one-line errors.

`register_configs()` puts into Hydra's ConfigStore the config `daypoint` and the schemas of `tracking` and
`trainer`, so that a misspelt key or a wrong type fails while Hydra composes the config; the pre-flight check finds
what Hydra cannot see. Both come before any directory is made. A process claims one directory, when Hydra first asks for it.
This module opens no run. Only `overrides`, `sweep` and this module import hydra, inside functions.
The reasons: docs/decisions/0003-hydra.md.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from daypoint.base import day
from daypoint.base.errors import ConfigError, DaypointError
from daypoint.hydra import overrides
from daypoint.hydra import sweep as hydra_sweep
from daypoint.ranks import group
from daypoint.record import sweep
from daypoint.record.config import SCHEMAS, Sweep, check, outputs_directory, section

RUN_DIRECTORY = "${daypoint.run_dir:}"
SWEEP_DIRECTORY = "${daypoint.sweep_dir:}"
LOG_FILE = {
    "class": "logging.FileHandler",
    "filename": "${hydra.runtime.output_dir}/${hydra.job.name}.log",
    "delay": True,
}
"""Hydra's log file, made only when a line goes into it. All of its keys are here because `hydra/job_logging=disabled` and
`stdout` have none.
"""
SWEEP_VARIABLE = "DAYPOINT_SWEEP_DIR"
"""Tells the job processes of a sweep which directory the sweep's own process has claimed."""


@dataclass(frozen=True)
class HydraJob:
    """What Hydra knows about the job that runs now.

    Attributes:
        directory: its output directory, absolute.
        overrides: what was given on the command line, as given.
        choices: the member chosen in each config group.
        sweep_job: its number in a sweep; None in a single run.
    """

    directory: Path
    overrides: list[str]
    choices: dict[str, str]
    sweep_job: int | None


def current_job() -> HydraJob | None:
    """The job that Hydra runs in this process now; None when Hydra does not run this program."""
    if "hydra" not in sys.modules:
        return None
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized():
        return None
    hydra = HydraConfig.get()
    return HydraJob(
        directory=Path(hydra.runtime.output_dir),
        overrides=overrides.as_given(hydra.overrides.task),
        choices={str(name): str(member) for name, member in hydra.runtime.choices.items()},
        sweep_job=int(hydra.job.num) if hydra.mode == RunMode.MULTIRUN else None,
    )


@contextlib.contextmanager
def one_message() -> Iterator[None]:
    """In a Hydra app, have Hydra print an error of daypoint as its message alone, without a traceback.

    `HYDRA_FULL_ERROR=1` brings the traceback back. Outside Hydra errors pass unchanged.
    """
    try:
        yield
    except DaypointError as error:
        if current_job() is None:
            raise
        from hydra.errors import CompactHydraException

        kind = type(type(error).__name__, (type(error), CompactHydraException), {})
        raise kind(f"error: {error}") from error


def instantiate(node: Any, **arguments: Any) -> Any:
    """`hydra.utils.instantiate`, but an error that daypoint raises inside it comes out unchanged, as one message.

    Args:
        node: a part of the config with a `_target_`.
        arguments: more arguments for the target.

    Raises:
        ConfigError: it has no `_target_`; Hydra would give back the config itself.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate as hydras

    with one_message():
        if OmegaConf.is_dict(node) and "_target_" not in node:
            raise ConfigError(
                f"{node._get_full_key(None) or 'config'}: expected a _target_ that says what to make, "
                f"found {', '.join(map(str, node)) or 'nothing'}; name the class, such as _target_: my_package.MyNet"
            )
    try:
        return hydras(node, **arguments)
    except InstantiationException as error:
        if not isinstance(cause := error.__cause__, DaypointError):
            raise
        with one_message():
            raise cause from None


def register_configs() -> None:
    """Make daypoint's config known to Hydra; call it once, before `@hydra.main` runs. Idempotent.

    Afterwards `defaults: [daypoint, tracking: schema, ...]` in a primary config gives it the dated run
    directory, the pre-flight check and the typed `tracking` section. `conf/tracking/*.yaml` and
    `conf/trainer/*.yaml` can build on the schemas.
    """
    from hydra.core.config_store import ConfigStore

    with _one_message_and_exit():
        overrides.check_quotes(sys.argv[1:])
        sys.argv[1:] = hydra_sweep.expand_resume(sys.argv[1:], day.project_root() / "outputs")
    OmegaConf.register_new_resolver("daypoint.run_dir", _run_dir, replace=True)
    OmegaConf.register_new_resolver("daypoint.sweep_dir", _sweep_dir, replace=True)
    OmegaConf.register_new_resolver("daypoint.job_dir", _job_dir, replace=True)
    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(group=name, name="schema", node=schema, provider="daypoint")
    store.store(
        name="daypoint",
        package="_global_",
        provider="daypoint",
        node={
            "sweep": OmegaConf.structured(Sweep),
            "hydra": {
                "run": {"dir": RUN_DIRECTORY},
                "sweep": {"dir": SWEEP_DIRECTORY, "subdir": "${daypoint.job_dir:}"},
                # run.json and config_DAY.yaml hold what .hydra/ would, with the secrets left out.
                "output_subdir": None,
                "job": {"chdir": False},
                "job_logging": {"handlers": {"file": LOG_FILE}},
                "callbacks": {"daypoint": {"_target_": "daypoint.hydra.app.Preflight"}},
            },
        },
    )


_claimed: dict[str, Path] = {}
_claimed_at: dict[Path, datetime] = {}


def claimed_at(directory: Path) -> datetime | None:
    """The instant for which this process claimed a run directory; None if it did not."""
    return _claimed_at.get(directory)


def _run_dir(*, _root_: DictConfig) -> str:
    """The directory of this process's run: claimed at the first call, the same ever after."""
    return str(_claim_once("run", _root_))


def _sweep_dir(*, _root_: DictConfig) -> str:
    """The directory of this sweep: claimed by the process that was started with `-m`, which passes it to the processes of
    its jobs.
    """
    is_job = not OmegaConf.is_missing(_root_.hydra.job, "num")
    if "sweep" not in _claimed and is_job and (told := os.environ.get(SWEEP_VARIABLE)):
        _claimed["sweep"] = Path(told)
    directory = _claim_once("sweep", _root_)
    os.environ[SWEEP_VARIABLE] = str(directory)
    return str(directory)


_job_dirs: dict[tuple[Path, int], str] = {}


def _job_dir(*, _root_: DictConfig) -> str:
    """The name of a job's directory: its number, with a suffix when an earlier try at it has that."""
    base, number = Path(_sweep_dir(_root_=_root_)), int(_root_.hydra.job.num)
    if (base, number) not in _job_dirs:
        names = (str(number), *(f"{number}-{attempt}" for attempt in range(2, 10_000)))
        _job_dirs[base, number] = next(name for name in names if not day.is_run(base / name))
    return _job_dirs[base, number]


def _claim_once(kind: str, root: DictConfig) -> Path:
    if kind == "sweep" and kind not in _claimed and (address := OmegaConf.select(root, "sweep.resume")):
        _claimed[kind] = sweep.find(str(address), day.project_root() / "outputs")
        _claimed_at[_claimed[kind]] = day.now()
    if kind not in _claimed:
        # A resumed run has its directory already; this one stays empty, unless Hydra logs into it.
        tracking = section(
            {"tracking": OmegaConf.to_container(root.get("tracking", {}), resolve=True)}, "tracking"
        )
        moment = day.now(tracking.timezone)
        if group.is_main():
            outputs = outputs_directory(tracking)
            made = [path for path in (outputs, *outputs.parents) if not path.exists()]
            directory = day.claim(outputs, moment, "sweep-" if kind == "sweep" else "")
            atexit.register(_remove_if_empty, [directory, directory.parent, *made])
            group.agree(kind, str(directory))
        else:
            directory = Path(group.agree(kind, ""))
        _claimed[kind] = directory
        _claimed_at[directory] = moment
    return _claimed[kind]


def _remove_if_empty(made: list[Path]) -> None:
    """A program that ended before it opened a run (debug=shapes, a data file that is not there) leaves no
    directory.

    Args:
        made: what it made, innermost first.
    """
    with contextlib.suppress(OSError):
        for path in made:
            path.rmdir()


def shorten_interrupts() -> None:
    """Have Ctrl-C in a Hydra app end with one word instead of a traceback through Hydra; HYDRA_FULL_ERROR=1 brings the
    traceback back. The exit status is Python's own. An excepthook of the program's own stays.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _interrupted


def _interrupted(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    if kind is KeyboardInterrupt and os.environ.get("HYDRA_FULL_ERROR") != "1":
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, place)


class Preflight:
    """The Hydra callback that checks a config, and claims the run's directory, before Hydra makes one.

    Hydra turns a callback's exception into a warning and goes on, but lets SystemExit through. Nothing depends on
    this check having run: `open_run` repeats it.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        shorten_interrupts()
        if group.is_main():
            overrides.flag_repeated_keys(overrides.as_given(config.hydra.overrides.task))
        with _one_message_and_exit(), _hydra_visible(config):
            target = str(OmegaConf.to_container(config.hydra.run, resolve=False)["dir"])  # type: ignore
            if "${" not in target and day.is_run(directory := Path(target).absolute()):
                raise ConfigError(
                    f"{directory}: this directory holds a run already; leave hydra.run.dir alone to get a new one"
                )
            check(_without_hydra(config))
            if target == RUN_DIRECTORY:
                _claim_once("run", config)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        shorten_interrupts()
        with _one_message_and_exit():
            section(OmegaConf.to_container(config, resolve=False, throw_on_missing=False), "sweep")  # type: ignore
            directory = Path(str(config.hydra.sweep.dir)).absolute()
            if group.is_main():
                overrides.flag_repeated_keys(overrides.as_given(config.hydra.overrides.task))
                hydra_sweep.hide_secrets_on_screen()
                hydra_sweep.begin(directory, claimed_at(directory) or day.now(), config)

    def on_run_end(self, config: DictConfig, **_: Any) -> None: ...
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        if group.is_main():
            hydra_sweep.end(Path(str(config.hydra.sweep.dir)).absolute())

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        job = current_job()
        if job is None or job.sweep_job is None or not group.is_main():
            return
        directory = Path(str(config.hydra.sweep.dir)).absolute()
        hydra_sweep.hide_secrets(directory / "multirun.yaml")
        hydra_sweep.begin_job(
            directory,
            job.sweep_job,
            job.overrides,
            _place(job, directory),
            lambda: check(_without_hydra(config)),
            resumes=bool(OmegaConf.select(config, "sweep.resume")),
        )

    def on_job_end(self, config: DictConfig, job_return: Any, **_: Any) -> None:
        job = current_job()
        if job is not None and job.sweep_job is None:
            _say_in_one_message(job_return)
        elif job is not None and group.is_main():
            directory = Path(str(config.hydra.sweep.dir)).absolute()
            stop = OmegaConf.select(config, "sweep.on_failure") == "stop"
            hydra_sweep.end_job(directory, job.sweep_job, _place(job, directory), job_return, stop)


def _without_hydra(config: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])


def _place(job: HydraJob, sweep_directory: Path) -> str:
    return os.path.relpath(job.directory, sweep_directory)


def _say_in_one_message(job_return: Any) -> None:
    """Print a ConfigError, wherever it was raised, and any error that came through `one_message`, without a traceback."""
    from hydra.errors import CompactHydraException

    error = job_return._return_value
    is_known = isinstance(error, ConfigError) or (
        isinstance(error, DaypointError) and isinstance(error, CompactHydraException)
    )
    if is_known and os.environ.get("HYDRA_FULL_ERROR") != "1":
        print(str(error) if str(error).startswith("error: ") else f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


@contextlib.contextmanager
def _one_message_and_exit() -> Iterator[None]:
    try:
        yield
    except (DaypointError, OmegaConfBaseException) as error:
        ours = _cause(error)
        if ours is None:
            raise
        print(f"error: {ours}", file=sys.stderr)
        raise SystemExit(1) from None


def _cause(error: BaseException | None) -> DaypointError | None:
    """The error of daypoint's that is, or is behind, another: OmegaConf wraps those of resolvers."""
    while error is not None and not isinstance(error, DaypointError):
        error = error.__cause__ or error.__context__
    return error


@contextlib.contextmanager
def _hydra_visible(config: DictConfig) -> Iterator[None]:
    """Let `${hydra:...}` be resolved before Hydra has set it up; the output directory is not known yet."""
    from hydra.core.hydra_config import HydraConfig

    with read_write(seen := copy.deepcopy(config)), open_dict(seen):
        seen.hydra.runtime.output_dir = "(the run directory)"
    instance = HydraConfig.instance()
    before, instance.cfg = instance.cfg, None
    try:
        instance.set_config(seen)
        yield
    finally:
        instance.cfg = before
