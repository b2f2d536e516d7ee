import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_runs import unused_port

from daypoint.base import keys
from daypoint.base.errors import ConfigError, StoreError
from daypoint.tracking import store

# MLflow's use of SQLAlchemy, not ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.usefixtures("warm_python"),
]

ROOT = Path("/home/ada/project")


def uri_of(path):
    return f"sqlite:///{path}"


def tables_of(path):
    with sqlite3.connect(path) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


# ---------------------------------------------------------------- addresses


@pytest.fixture
def no_variable(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_the_default_is_a_sqlite_file_of_the_project(no_variable):
    assert store.tracking_uri(None, ROOT) == "sqlite:////home/ada/project/mlruns/mlflow.db"


def test_the_environment_comes_before_the_default(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.lan:5000/")
    assert store.tracking_uri(None, ROOT) == "http://tracking.lan:5000"


def test_the_setting_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.lan:5000")
    assert store.tracking_uri("sqlite:///a.db", ROOT) == "sqlite:////home/ada/project/a.db"


def test_an_empty_variable_is_no_variable(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert store.tracking_uri(None, ROOT).endswith("mlruns/mlflow.db")


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///mlflow.db",
        "mlflow.db",
        "./mlflow.db",
        "sqlite:///./x/../mlflow.db",
        "sqlite:////home/ada/project/mlflow.db",
    ],
)
def test_a_sqlite_path_is_absolute_whatever_the_working_directory(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store.tracking_uri(uri, ROOT) == "sqlite:////home/ada/project/mlflow.db"


def test_options_of_a_sqlite_address_are_kept():
    uri = store.tracking_uri("sqlite:///mlflow.db?timeout=60", ROOT)
    assert uri == "sqlite:////home/ada/project/mlflow.db?timeout=60"
    assert store.sqlite_path(uri) == ROOT / "mlflow.db"


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://ada@db/mlflow",
        "postgresql+psycopg://db/x",
        "mysql+pymysql://db/x",
        "databricks",
        "databricks://profile",
    ],
)
def test_other_addresses_stay_as_they_are(uri):
    assert store.tracking_uri(uri, ROOT) == uri


@pytest.mark.parametrize(
    "uri", ["./mlruns", "mlruns", "file:///home/ada/mlruns", "file:mlruns", "/home/ada/mlruns", ""]
)
def test_a_file_store_is_refused_with_the_ways_out(uri):
    with pytest.raises(ConfigError) as error:
        store.tracking_uri(uri, ROOT)
    for word in (
        "tracking.uri",
        "sqlite:///mlruns/mlflow.db",
        "mlflow migrate-filestore",
        "MLFLOW_ALLOW_FILE_STORE",
    ):
        assert word in str(error.value)


def test_a_bad_address_in_the_environment_is_called_by_the_name_of_the_variable(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(ConfigError, match=r"^MLFLOW_TRACKING_URI: "):
        store.tracking_uri(None, ROOT)


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:"])
def test_a_store_in_memory_is_refused(uri):
    with pytest.raises(ConfigError, match="expected a SQLite file"):
        store.tracking_uri(uri, ROOT)


@pytest.mark.parametrize(
    "uri",
    [
        "http://",
        "http:/host",
        "https:host",
        "http://:5000",
        "http://host:abc",
        "http://host:99999",
        "http://h\n",
    ],
)
def test_an_address_without_a_host_or_with_an_impossible_port_is_refused(uri):
    with pytest.raises(
        ConfigError, match=r"tracking\.uri: expected a server's address such as http://host:5000"
    ):
        store.tracking_uri(uri, ROOT)


def test_a_misspelt_scheme_is_refused():
    with pytest.raises(ConfigError, match=r"found 'htp://tracking\.lan'"):
        store.tracking_uri("htp://tracking.lan", ROOT)


@pytest.mark.parametrize("name", ["what?", "100%41"])
def test_a_path_that_would_be_read_as_another_one_is_refused(name):
    with pytest.raises(ConfigError, match="expected a path that can stand in a URI"):
        store.tracking_uri(None if name is None else "sqlite:///m.db", ROOT / name)


def test_a_project_whose_path_no_uri_can_hold_is_told_the_setting_to_give(no_variable):
    with pytest.raises(ConfigError, match=r"^tracking\.uri: .*give the store another place"):
        store.tracking_uri(None, Path("/home/ada/100%41"))


def test_artifacts_lie_beside_a_sqlite_file():
    assert store.artifact_root("sqlite:////data/team/mlflow.db", ROOT) == "/data/team/artifacts"


def test_artifacts_of_another_database_lie_in_the_project():
    assert store.artifact_root("postgresql://db/mlflow", ROOT) == "/home/ada/project/mlruns/artifacts"


def test_a_server_decides_where_artifacts_go():
    assert store.artifact_root("http://tracking.lan", ROOT) is None


def test_the_page_of_a_run_on_a_server_has_no_password_in_it():
    url = store.run_url("http://ada:secret@tracking.lan:5000", "7", "abc")
    assert url == "http://tracking.lan:5000/#/experiments/7/runs/abc?workflowType=machine_learning"


def test_the_page_of_a_run_in_a_sqlite_store_is_what_comes_after_the_address_of_the_ui():
    assert (
        store.run_url("sqlite:////x.db", "7", "abc")
        == "#/experiments/7/runs/abc?workflowType=machine_learning"
    )


# ---------------------------------------------------------------- opening


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A store with its tables, in a directory with a difficult name."""
    path = tmp_path_factory.mktemp("é #1") / "mlruns" / "mlflow.db"
    store.prepare(uri_of(path))
    return path


def test_preparing_makes_the_directory_and_the_tables(prepared):
    assert {"experiments", "metrics", "latest_metrics", "alembic_version"} <= tables_of(prepared)


def test_preparing_leaves_nothing_but_the_store_and_its_lock(prepared):
    assert {path.name for path in prepared.parent.iterdir()} == {"mlflow.db", "mlflow.db.lock"}


def test_the_default_experiment_has_its_artifacts_beside_the_store(prepared):
    experiment = store.connect(uri_of(prepared)).get_experiment("0")
    assert experiment.artifact_location == str(prepared.parent / "artifacts" / "0")


def test_preparing_again_is_quick_and_changes_nothing(prepared):
    before = prepared.read_bytes()
    started = time.monotonic()
    store.prepare(uri_of(prepared))
    assert time.monotonic() - started < 1.0
    assert prepared.read_bytes() == before


def test_mlflow_takes_every_key_and_gives_it_back(prepared):
    from mlflow.entities import Metric, Param

    client = store.connect(uri_of(prepared))
    run_id = client.create_run("0").info.run_id

    @given(st.sets(st.text(min_size=1, max_size=20), min_size=20, max_size=40))
    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    def check(names):
        run_id = client.create_run("0").info.run_id
        made = [keys.mlflow_key(name) for name in names]
        client.log_batch(run_id, [Metric(key, 1.0, 0, 0) for key in made], [Param(key, "") for key in made])
        data = client.get_run(run_id).data
        assert {keys.name_of(key) for key in data.metrics} == names
        assert {keys.name_of(key) for key in data.params} == names

    check()
    names = {"Loss", "loss", "LOSS", "ß", "ss", "a", "a "}
    client.log_batch(run_id, [Metric(keys.mlflow_key(name), 1.0, 0, 0) for name in names])
    assert set(client.get_run(run_id).data.metrics) == names  # SQLite tells upper from lower case


def test_a_store_that_cannot_be_written_is_a_store_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be written: File exists; set tracking\.uri"):
        store.prepare(uri_of(tmp_path / "file" / "mlflow.db"))


def test_tables_of_another_mlflow_are_a_store_error_with_the_command(prepared, tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(prepared.read_bytes())
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '27a6a02d2cf1'")
    with pytest.raises(StoreError, match="make a backup, then run `mlflow db upgrade"):
        store.prepare(uri_of(path))


def test_a_dead_server_costs_seconds():
    client = store.connect(f"http://127.0.0.1:{unused_port()}")
    started = time.monotonic()
    with pytest.raises(Exception, match="Connection refused"):
        client.get_experiment_by_name("digits")
    assert time.monotonic() - started < 5.0


def test_importing_the_store_does_not_import_mlflow():
    script = "import daypoint.tracking.store, sys; print([m for m in ('mlflow', 'sqlalchemy', 'torch') if m in sys.modules])"
    done = subprocess.run([warm.COLD, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("delay_seconds", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_a_kill_while_the_tables_are_made_leaves_no_half_made_store(tmp_path, delay_seconds):
    path = tmp_path / "mlruns" / "mlflow.db"
    script = f"from daypoint.tracking import store; store.prepare('sqlite:///{path}')"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        while process.poll() is None and not list(path.parent.glob(".mlflow.db.*.tmp")):
            time.sleep(0.01)
        time.sleep(delay_seconds)
        process.kill()
    store.check_experiment(uri_of(path), "digits")
    store.prepare(uri_of(path))
    assert {"experiments", "metrics", "alembic_version"} <= tables_of(path)
    assert {file.name for file in path.parent.iterdir()} == {"mlflow.db", "mlflow.db.lock"}


@pytest.mark.slow
def test_eight_processes_on_a_fresh_store_all_find_it_ready(tmp_path):
    script = f"from daypoint.tracking import store; store.prepare('sqlite:///{tmp_path}/mlruns/mlflow.db')"
    processes = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(8)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, errors


# ---------------------------------------------------------------- before training


@pytest.fixture
def copy(prepared, tmp_path):
    """A store of this test alone, with the experiments `live`, `gone`, `served` and `moved`."""
    path = tmp_path / "mlflow.db"
    path.write_bytes(prepared.read_bytes())
    rows = [
        ("live", "active", f"{tmp_path}/artifacts/live"),
        ("gone", "deleted", f"{tmp_path}/artifacts/gone"),
        ("served", "active", "mlflow-artifacts:/2"),
        ("moved", "active", "/home/ada/elsewhere/mlruns/artifacts/moved"),
    ]
    with sqlite3.connect(path) as database:
        statement = "INSERT INTO experiments (name, lifecycle_stage, artifact_location) VALUES (?, ?, ?)"
        database.executemany(statement, rows)
    return path


def test_a_live_experiment_passes(copy):
    store.check_experiment(uri_of(copy), "live")


def test_an_experiment_that_is_not_there_yet_passes(copy):
    store.check_experiment(uri_of(copy), "new")


def test_a_store_that_is_not_there_yet_passes(tmp_path):
    store.check_experiment(uri_of(tmp_path / "none" / "mlflow.db"), "digits")


def test_a_file_that_is_still_empty_passes(tmp_path):
    (tmp_path / "mlflow.db").touch()
    store.check_experiment(uri_of(tmp_path / "mlflow.db"), "digits")


def test_a_server_is_not_asked():
    store.check_experiment("http://127.0.0.1:1", "digits")


def test_a_deleted_experiment_is_refused_with_the_way_to_restore_it(copy):
    with pytest.raises(
        StoreError, match=r"'gone'.*mlflow experiments restore -x 2`.*tracking\.experiment=NAME"
    ):
        store.check_experiment(uri_of(copy), "gone")


def test_an_experiment_of_a_server_is_refused(copy):
    with pytest.raises(StoreError, match="only the server that made this experiment can write"):
        store.check_experiment(uri_of(copy), "served")


def test_an_experiment_whose_artifacts_stayed_elsewhere_is_refused(copy):
    with pytest.raises(StoreError, match=r"was the project moved\?.*daypoint sync --all"):
        store.check_experiment(uri_of(copy), "moved")


@pytest.mark.parametrize("name", ["", "x" * 501])
def test_a_name_that_no_experiment_can_have_is_refused(name):
    with pytest.raises(ConfigError, match=f"expected 1 to 500 characters, found {len(name)}"):
        store.check_experiment("http://127.0.0.1:1", name)


def test_a_locked_store_passes_at_once(copy):
    with sqlite3.connect(copy) as database:
        database.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        store.check_experiment(uri_of(copy), "gone")
        assert time.monotonic() - started < 2.0


def test_a_half_migrated_store_is_refused_with_the_way_out(copy):
    with sqlite3.connect(copy) as database:
        database.execute("CREATE TABLE _alembic_tmp_latest_metrics (key TEXT)")
    with pytest.raises(StoreError, match=rf"half-made.*mv {copy} {copy}\.broken.*daypoint sync --all"):
        store.check_experiment(uri_of(copy), "live")


def test_a_store_with_tables_missing_is_refused(copy):
    with sqlite3.connect(copy) as database:
        database.execute("DROP TABLE latest_metrics")
    with pytest.raises(StoreError, match="half-made"):
        store.check_experiment(uri_of(copy), "live")


def test_a_migration_at_work_passes(copy):
    script = (
        "import sqlite3, time\n"
        f"database = sqlite3.connect({str(copy)!r}, isolation_level=None)\n"
        "database.execute('CREATE TABLE _alembic_tmp_metrics (key TEXT)')\n"
        "print(flush=True)\n"
        "for i in range(40): database.execute('INSERT INTO _alembic_tmp_metrics VALUES (1)'); time.sleep(0.1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        store.check_experiment(uri_of(copy), "live")
        process.kill()


def test_what_is_no_sqlite_file_is_refused(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"this is no database, however long it may be " * 100)
    with pytest.raises(StoreError, match="expected a SQLite file, found something else"):
        store.check_experiment(uri_of(path), "digits")


def test_statistics_are_made_for_sqlite(copy):
    store.analyze(uri_of(copy))
    assert "sqlite_stat1" in tables_of(copy)


def test_making_statistics_never_waits_long_for_a_lock(copy):
    with sqlite3.connect(copy) as database:
        database.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        store.analyze(uri_of(copy))
        assert time.monotonic() - started < 5.0
