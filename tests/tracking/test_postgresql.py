"""The same into PostgreSQL, as a team has it: runs, sweeps, models; every point once, and nothing to send again."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import orjson
import pytest
from written_runs import unused_port

from daypoint.record import journal

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def database():
    """The address of an empty database on a server of this test's own."""
    psycopg = pytest.importorskip("psycopg")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [
        Path(p).parent for p in [shutil.which("initdb")] if p
    ]
    assert found, "install postgresql"
    directory = Path(tempfile.mkdtemp(prefix="daypoint-postgresql-"))
    as_other = []
    if os.getuid() == 0:  # PostgreSQL refuses to be run by root
        as_other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(directory, "postgres", "postgres")
    port = unused_port()
    server = ["-D", str(directory / "data")]

    def run(name, *arguments):
        command = [*as_other, str(found[-1] / name), *arguments]
        subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL)

    run("initdb", *server, "-A", "trust", "-U", "daypoint")
    run("pg_ctl", *server, "-o", f"-p {port} -k {directory}", "-l", str(directory / "log"), "-w", "start")
    try:
        with psycopg.connect(
            f"host=127.0.0.1 port={port} user=daypoint dbname=postgres", autocommit=True
        ) as admin:
            admin.execute("CREATE DATABASE mlflow")
        yield f"postgresql://daypoint@127.0.0.1:{port}/mlflow"
    finally:
        run("pg_ctl", *server, "-m", "immediate", "stop")
        shutil.rmtree(directory)


def test_runs_a_sweep_and_a_model_are_all_there_once(project, database):
    import psycopg

    quick = ("data=linear", "data.rows=64", "trainer.epochs=2", f"tracking.uri={database}")
    project.train(*quick, "model=linear")
    project.train("-m", *quick, "model=linear", "optimizer.lr=0.1,0.01")
    with psycopg.connect(database) as connection:
        uids = dict(
            connection.execute("SELECT value, run_uuid FROM tags WHERE key = 'daypoint.uid'").fetchall()
        )
        for directory in project.runs():
            uid = orjson.loads((directory / "run.json").read_bytes())["uid"]
            events = journal.read(directory / "journal.jsonl").events
            expected = {
                (name, event["step"], event["time"], value)
                for event in events
                if event["event"] in ("batch", "epoch_metrics")
                for name, value in event["metrics"].items()
            }
            rows = connection.execute(
                "SELECT key, step, timestamp, value FROM metrics WHERE run_uuid = %s", [uids[uid]]
            )
            stored = [tuple(row) for row in rows if not row[0].startswith("epoch/")]
            assert len(stored) == len(set(stored))
            assert set(stored) == expected
        statuses = connection.execute("SELECT DISTINCT status FROM runs").fetchall()
    assert len(uids) == 4  # two jobs, their parent, and the single run
    assert statuses == [("FINISHED",)]
    assert "models:/linear@" in project.daypoint("package", "today").stdout
    assert "0 points sent now" in project.daypoint("sync", "--all").stdout.splitlines()[-1]
