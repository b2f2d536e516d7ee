"""Finds, checks and opens the MLflow store, the database or server in which MLflow keeps runs.

Addresses become absolute once. A SQLite store gets its tables before anyone else can see the file, because MLflow's own
way takes four times as long and fails when two processes do it at once. The store of a project that was moved or copied goes with it. This module imports mlflow only inside the functions
that open a store, so that the training process can use the others.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import logging
import os
import re
import secrets
import shlex
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from daypoint.base import day
from daypoint.base.errors import ConfigError, StoreError
from daypoint.base.redaction import redact_text
from daypoint.record import identity

if TYPE_CHECKING:
    from mlflow import MlflowClient

UI_ADDRESS = "http://127.0.0.1:5000"
"""Where `daypoint ui` serves, unless it is told another port."""

_DATABASES = ("postgresql", "mysql", "mssql")
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
)
"""The tables and columns of MLflow that have absolute paths of artifacts."""
_TABLES = {"alembic_version", "latest_metrics", "metrics", "params", "runs", "tags"}


# ---------------------------------------------------------------- addresses


def tracking_uri(uri: str | None, root: Path) -> str:
    """The absolute address of the store: the setting, else $MLFLOW_TRACKING_URI, else the project's own SQLite file.

    Args:
        uri: the setting `tracking.uri`; None when it is not set.
        root: the project. A relative SQLite path is relative to it, never to the working directory.

    Raises:
        ConfigError: the address cannot be used; that of a file store in particular.
    """
    setting = "tracking.uri"
    if uri is None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        setting = "MLFLOW_TRACKING_URI" if uri else setting
        uri = uri or "sqlite:///mlruns/mlflow.db"
    if uri.startswith("sqlite:") or (":" not in uri and uri.endswith((".db", ".sqlite", ".sqlite3"))):
        return _absolute_sqlite(uri, root, setting)
    match = re.match(r"([A-Za-z][\w.-]*)(\+\w+)?:", uri)
    scheme = match[1] if match else None
    if scheme in ("http", "https"):
        _check_host(uri, setting)
        return uri.rstrip("/")
    plugins = {plugin.name for plugin in importlib.metadata.entry_points(group="mlflow.tracking_store")}
    if uri == "databricks" or scheme in {"databricks", "databricks-uc", "uc", *_DATABASES, *plugins}:
        return uri
    if scheme in (None, "file"):
        raise ConfigError(
            f"{setting}: expected a database or a server, found the file store {uri!r}; MLflow closed file stores in "
            "3.13 (they open only with MLFLOW_ALLOW_FILE_STORE=true, and store a point that is sent twice two times); "
            "use sqlite:///mlruns/mlflow.db, and move old runs into it with `mlflow migrate-filestore`"
        )
    raise ConfigError(
        f"{setting}: expected sqlite:///FILE, http(s)://HOST, postgresql://…, mysql://…, mssql://… or databricks, "
        f"found {uri!r}"
    )


def _check_host(uri: str, setting: str) -> None:
    try:
        there = urlsplit(uri)
        if not (there.hostname and there.port != 0 and uri.isprintable()):
            raise ValueError
    except ValueError:  # also a port that is not a number, or too large
        raise ConfigError(
            f"{setting}: expected a server's address such as http://host:5000, found {redact_text(uri)!r}"
        ) from None


def _absolute_sqlite(uri: str, root: Path, setting: str) -> str:
    rest = uri.removeprefix("sqlite:///")
    file, _, query = rest.partition("?")
    if rest.startswith("sqlite:") or file in ("", ":memory:"):
        raise ConfigError(
            f"{setting}: expected a SQLite file, as in sqlite:///mlruns/mlflow.db, found {uri!r}; "
            "a store in memory cannot be seen by another process"
        )
    path = os.path.normpath(root / Path(file).expanduser())
    if "?" in path or re.search(r"%[0-9A-Fa-f]{2}", path):
        raise ConfigError(
            f"{setting}: expected a path that can stand in a URI, found {path!r}, where `?` or `%41` would be read as "
            "something else; give the store another place, or use a server"
        )
    return f"sqlite:///{path}" + (f"?{query}" if query else "")


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other store."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


def artifact_root(uri: str, root: Path) -> str | None:
    """Where artifacts go: beside a SQLite file, in the project for other databases, None where a server decides."""
    if path := sqlite_path(uri):
        return str(path.parent / "artifacts")
    return str(root / "mlruns" / "artifacts") if _is_database(uri) else None


def of_run(directory: Path, record: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The store of a run and where artifacts of new experiments go in it. (None, None): tracking was off.

    The SQLite store of a project is where the project is now: one that was moved or copied has its own with it, and never
    writes where it was. A store outside the project, or on a server, stays what it is.

    Args:
        directory: the run directory, absolute.
        record: its run.json.
    """
    uri, artifacts = record["tracking_uri"], record.get("artifact_root")
    if uri is None or not _is_database(uri):
        return uri, artifacts
    then, now = identity.project_then_and_now(directory, record)
    if now == then:
        return uri, artifacts
    path = sqlite_path(uri)
    if path is not None and path.is_relative_to(then):
        uri = uri.replace(str(path), str(now / path.relative_to(then)), 1)
    return uri, artifact_root(uri, now)


def _is_database(uri: str) -> bool:
    return uri.startswith(("sqlite", *_DATABASES))


def run_url(uri: str, experiment_id: str, run_id: str) -> str:
    """The page of a run: a URL on a server, else the part that comes after the address of `daypoint ui`."""
    # Without the type MLflow 3.17 shows its pages for language models.
    page = f"#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"
    return f"{without_password(uri)}/{page}" if uri.startswith("http") else page


def without_password(uri: str) -> str:
    """The address without name and password, to be printed."""
    return re.sub("//[^/@]*@", "//", uri)


def page_of(uri: str, uid: str) -> str | None:
    """The page of the run that was sent under this uid, found without importing mlflow; None if the run was not sent yet, or
    the store is not a SQLite file.
    """
    path = sqlite_path(uri)
    if path is None or not path.is_file():
        return None
    question = (
        "SELECT r.experiment_id, r.run_uuid FROM tags t JOIN runs r ON r.run_uuid = t.run_uuid "
        "WHERE t.key = 'daypoint.uid' AND t.value = ? AND r.lifecycle_stage = 'active'"
    )
    try:
        found = _query(path, question, uid)
    except sqlite3.DatabaseError:
        return None  # locked, or no store of MLflow
    return run_url(uri, *map(str, found[0])) if found else None


# ---------------------------------------------------------------- before training, without mlflow


def check_experiment(uri: str, name: str) -> None:
    """Check that the store can take runs of this experiment, without waiting and without importing mlflow.

    Only what is sure to fail is refused: a store that is locked or does not exist yet passes; servers are not asked.

    Raises:
        ConfigError: no experiment can have this name.
        StoreError: the experiment was deleted or belongs to a server, or the store is damaged.
    """
    if not 0 < len(name) <= 500:
        raise ConfigError(
            f"tracking.experiment: expected 1 to 500 characters, found {len(name)}; choose another name"
        )
    path = sqlite_path(uri)
    if path is None or not path.exists():
        return
    if not path.is_file():  # SQLite would wait for a FIFO
        raise StoreError(
            f"{path}: expected a SQLite file, found something else; move it away, or set tracking.uri"
        )
    if path.stat().st_size == 0:
        return
    question = "SELECT experiment_id, lifecycle_stage, artifact_location FROM experiments WHERE name = ?"
    try:
        if _is_half_made(path):
            raise StoreError(
                f"{path}: expected the tables of MLflow, found a store left half-made (two programs created it at once, "
                f"or one was killed); move it away, `{_move(path, 'broken')}`, and fill a new one from the runs "
                "themselves, `daypoint sync --all`"
            )
        found = _query(path, question, name)
    except sqlite3.OperationalError:
        return  # locked, or not a store of MLflow yet: the courier will see
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"{path}: expected a SQLite file, found something else ({error}); move it away, or set tracking.uri"
        ) from error
    for row in found:
        refuse_unusable(uri, name, *row)


def _move(path: Path, suffix: str) -> str:
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.{suffix}')}"


def refuse_unusable(uri: str, name: str, experiment_id: str, stage: str, location: str) -> None:
    """Check that an existing experiment can take runs.

    Raises:
        StoreError: it cannot.
    """
    other = "choose another name with tracking.experiment=NAME"
    if stage == "deleted":
        raise StoreError(
            f"experiment {name!r}: expected a live one, found one that was deleted in MLflow; restore it with "
            f"`MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow experiments restore -x {experiment_id}`, or {other}"
        )
    if not _is_database(uri):
        return  # a server looks after its artifacts itself
    if location.startswith("mlflow-artifacts:"):
        raise StoreError(
            f"experiment {name!r}: expected artifacts within reach of {uri}, found {location!r}, which only the server "
            f"that made this experiment can write; set tracking.uri to that server, or {other}"
        )
    if location.startswith("/") and not Path(location).parent.parent.exists():
        path = sqlite_path(uri) or Path("STORE")
        raise StoreError(
            f"experiment {name!r}: expected its artifacts under {location}, found no such place (was the project moved?); "
            f"move the store away, `{_move(path, 'moved')}`, and fill a new one from the runs themselves, "
            f"`daypoint sync --all`; or {other}"
        )


def _query(path: Path, statement: str, *values: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=0.5)
    with contextlib.closing(connection):
        return connection.execute(statement, values).fetchall()


def _is_half_made(path: Path) -> bool:
    """Whether tables are missing or left over from a migration, and no process is working on them."""
    for _ in range(2):
        tables = {name for (name,) in _query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
        missing = "experiments" in tables and _TABLES - tables
        if not missing and not any(name.startswith("_alembic_tmp_") for name in tables):
            return False
        before = path.stat().st_mtime_ns
        time.sleep(1)
        if path.stat().st_mtime_ns != before:  # a migration in progress writes all the time
            return False
    return True


# ---------------------------------------------------------------- a project that was moved


def repair_moved(uri: str) -> str | None:
    """Let the store of a project that was moved, copied or restored look for its artifacts where the project is now.

    Only a SQLite file in a project is touched. It needs no mlflow.

    Returns:
        What was done, in one line; None if there was nothing to do.

    Raises:
        StoreError: it could not be done; the store is as it was.
    """
    path = sqlite_path(uri)
    if path is None or _moved_from(path) is None:
        return None
    with _locked(uri):
        return _repair_moved(path)


def made_anew(path: Path) -> str:
    """The line that is printed when there is no store, and one is made."""
    return f"made a new MLflow store, {path}; `daypoint sync --all` sends it every run there is"


def _moved_from(path: Path) -> Path | None:
    """The directory that a store was in when its experiments were made; None if it is there still."""
    here = path.parent
    if not path.exists() or day.project_root(here) == here:
        return None
    try:
        found = _query(
            path, "SELECT artifact_location FROM experiments ORDER BY CAST(experiment_id AS INTEGER)"
        )
    except sqlite3.DatabaseError:
        return None  # locked, or no store of MLflow: others say so
    for (location,) in found:
        artifacts = Path(
            unquote(urlsplit(location).path) if location.startswith("file://") else location
        ).parent
        was = artifacts.parent
        if not artifacts.is_absolute() or artifacts.name != "artifacts" or was.name != here.name:
            continue
        if was == here or (was.exists() and was.samefile(here)):  # the same by a symbolic link
            return None
        is_elsewhere = artifacts.is_dir() and not (was / path.name).exists()
        return None if is_elsewhere and not (here / "artifacts").is_dir() else was
    return None


def _repair_moved(path: Path) -> str | None:
    """Rewrite the places of artifacts in one transaction. A copy of the store is kept until that is done."""
    was, here = _moved_from(path), path.parent
    if was is None:
        return None
    kept = path.with_name(path.name + ".before-move")
    try:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database,
            contextlib.closing(sqlite3.connect(kept)) as copy,
        ):
            database.backup(copy)
            database.execute("BEGIN IMMEDIATE")
            with database:
                for table, column in _PLACES:
                    if database.execute(
                        f"SELECT 1 FROM pragma_table_info('{table}') WHERE name = ?", [column]
                    ).fetchall():
                        _replace_beginning(database, table, column, f"{was}/", f"{here}/")
                        old, new = (f"file://{quote(str(place))}/" for place in (was, here))
                        _replace_beginning(database, table, column, old, new)
                _replace_directories(database, was.parent, here.parent)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"{path}: the project was moved from {was.parent}, and the places of its artifacts cannot be changed: {error}; "
            f"try again, or fill a new store from the runs themselves, `daypoint sync --rebuild`"
        ) from error
    kept.unlink()
    return f"the project was in {was.parent}: the artifacts that {path} names are now those in {here / 'artifacts'}"


def _replace_beginning(database: sqlite3.Connection, table: str, column: str, old: str, new: str) -> None:
    database.execute(
        f"UPDATE {table} SET {column} = ?1 || substr({column}, length(?2) + 1) "
        f"WHERE substr({column}, 1, length(?2)) = ?2",
        (new, old),
    )


def _replace_directories(database: sqlite3.Connection, was: Path, here: Path) -> None:
    """Let the tag `daypoint.directory` name the run directories that came along."""
    found = database.execute("SELECT run_uuid, value FROM tags WHERE key = 'daypoint.directory'").fetchall()
    for run, text in found:
        if Path(text).is_relative_to(was) and (now := here / Path(text).relative_to(was)).is_dir():
            database.execute(
                "UPDATE tags SET value = ? WHERE key = 'daypoint.directory' AND run_uuid = ?", (str(now), run)
            )


# ---------------------------------------------------------------- opening


def prepare(uri: str) -> MlflowClient:
    """Make sure that the store has its tables, even if several processes do so at once; a client for it.

    The tables of a SQLite store are made in a file of another name, which is then renamed: nobody sees, and no crash
    leaves, a half-made store. Other databases are prepared under a lock of this machine.

    Raises:
        StoreError: the tables are of another MLflow version, the store cannot be written, or another process has been
            preparing it for two minutes.
    """
    if not _is_database(uri):
        return connect(uri)
    path = sqlite_path(uri)
    with _locked(uri):
        if path is not None:
            if not path.exists() or path.stat().st_size == 0:
                _create(path)
                print(made_anew(path), file=sys.stderr)
            if not os.access(path, os.R_OK | os.W_OK):  # MLflow would try for 102 seconds
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            if (repaired := _repair_moved(path)) is not None:
                print(repaired, file=sys.stderr)
        return _first_contact(uri)


@contextlib.contextmanager
def _locked(uri: str) -> Iterator[None]:
    """The lock on preparing a database: beside a SQLite file, else one of this machine.

    Raises:
        StoreError: another process has had it for two minutes, or the store cannot be written.
    """
    from filelock import FileLock, Timeout

    path = sqlite_path(uri)
    if path is None:
        digest = hashlib.sha256(f"{os.getuid()} {uri}".encode()).hexdigest()[:16]
        lock = Path(tempfile.gettempdir()) / f"daypoint-{digest}.lock"
    else:
        lock = path.with_name(path.name + ".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=120):
            yield
    except Timeout:
        raise StoreError(
            f"{lock}: another process has been preparing the MLflow store for two minutes; "
            "look at it, then try again"
        ) from None
    except OSError as error:
        raise StoreError(
            f"{error.filename or lock}: the MLflow store cannot be written: {error.strerror}; "
            "set tracking.uri to a place that can be"
        ) from error


def _first_contact(uri: str) -> MlflowClient:
    load_mlflow()
    from mlflow.exceptions import MlflowException

    try:
        client = connect(uri)
        client.search_experiments(max_results=1)
        return client
    except MlflowException as error:
        if "out-of-date database schema" not in str(error):
            raise
        raise StoreError(
            f"{uri}: expected the tables of the installed MLflow, found those of another version; make a backup, then "
            f"run `mlflow db upgrade {shlex.quote(uri)}`"
        ) from error


def _create(path: Path) -> None:
    load_mlflow()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import Engine, event

    def hurry(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")  # one fsync at the end instead of hundreds

    for leftover in path.parent.glob(f".{path.name}.*.tmp*"):  # of a process that was killed
        leftover.unlink()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    event.listen(Engine, "connect", hurry)
    try:
        # Told where artifacts go, or MLflow puts those of the experiment "Default" into the working directory.
        SqlAlchemyStore(f"sqlite:///{temporary}", str(path.parent / "artifacts")).engine.dispose()
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        event.remove(Engine, "connect", hurry)
        temporary.unlink(missing_ok=True)


def connect(uri: str) -> MlflowClient:
    """A client for this store, in a process whose environment makes a dead server cost seconds, not minutes."""
    load_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def load_mlflow() -> None:
    """Import mlflow with short timeouts and little output. What the user has set in the environment stays."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")  # seconds
    # The courier itself tries again, and reports it.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # Otherwise MLflow puts a pyproject.toml that happens to lie in the working directory into a model.
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow  # noqa: F401
    for name in ("mlflow", "alembic"):  # what they log as an error they also raise
        logging.getLogger(name).setLevel(logging.CRITICAL)


def analyze(uri: str) -> None:
    """Give SQLite the statistics that make charts of many runs fast (275 ms become 7 ms). Waits two seconds at most."""
    path = sqlite_path(uri)
    if path is None or not path.exists():
        return
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(path, timeout=2)) as store,
    ):
        store.execute("PRAGMA analysis_limit = 100000")
        store.execute("ANALYZE metrics")
        store.commit()


def put_aside(uri: str) -> Path | None:
    """Give a SQLite store, and the artifacts beside it, another name, so that a new one can be made in its place.

    Returns:
        What the store is called now; None if there was none.

    Raises:
        StoreError: it is not a SQLite store.
    """
    path = sqlite_path(uri)
    if path is None:
        raise StoreError(
            f"{uri}: expected a SQLite store to put aside, found another kind; start the server on a new one"
        )
    if not path.exists():
        return None
    suffix = time.strftime(".before-%Y%m%d-%H%M%S")
    for each in (path, path.parent / "artifacts"):
        if each.exists():
            each.rename(each.with_name(each.name + suffix))
    return path.with_name(path.name + suffix)
