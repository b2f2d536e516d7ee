"""Faults that really happen, done for real to whole runs. What a single room survives is tested with that room."""

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest
from projects import clean_environment
from waiting import until

import daypoint
from daypoint.again.verify import verify_run
from daypoint.base.errors import RunError
from daypoint.record import catalog, journal

pytestmark = pytest.mark.slow

VICTIMS = """
    import os, random, sys
    import torch, daypoint
    model = torch.nn.Linear(32, 32)
    torch.optim.Adam(model.parameters())  # what this imports, no child has to import
    with daypoint.open_run({"tracking": {"enabled": False, "outputs": sys.argv[1]}}, quiet=True) as run:
        run.log(loss=1.0)
        run.save(model=model)

    def child(outputs, seed):
        torch.manual_seed(seed)
        optimizer = torch.optim.Adam(model.parameters())
        cfg = {"seed": seed, "tracking": {"enabled": False, "outputs": outputs}}
        with daypoint.open_run(cfg, quiet=True, monitor="loss", keep=2) as run:
            os.write(1, f"run {run.directory}\\n".encode())
            for epoch in run.epochs(100000):
                for _ in range(5):
                    loss = model(torch.randn(4, 32)).square().mean()
                    optimizer.zero_grad(); loss.backward(); optimizer.step()
                    value = loss.item()
                    step = run.step
                    run.log(loss=loss)
                    os.write(1, f"log {step} {value!r}\\n".encode())
                wait = epoch % 3 == 0
                path = run.save(model=model, optimizer=optimizer, wait=wait)
                os.write(1, f"{'save' if wait else 'begun'} {path}\\n".encode())

    for line in sys.stdin:
        outputs, seed = line.split()
        pid = os.fork()
        if pid == 0:
            child(outputs, int(seed))
        os.write(2, f"{pid}\\n".encode())
        os.waitpid(pid, 0)
        os.write(1, b"end\\n")
"""


def test_two_hundred_kills_lose_nothing_that_was_acknowledged(tmp_path):
    """SIGKILL at 200 random moments: logging, saving, thinning out, ending an epoch. The oracle reads a pipe."""
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(VICTIMS), str(tmp_path / "warm")],
        cwd=tmp_path,  # not in a repository, of which git would have to be asked 200 times
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    rng = random.Random(7)
    saved_before = 0
    for trial in range(200):
        outputs = tmp_path / str(trial)
        parent.stdin.write(f"{outputs} {trial}\n")
        parent.stdin.flush()
        pid = int(parent.stderr.readline())
        acknowledged = [parent.stdout.readline()]
        for _ in range(rng.randrange(1, 60)):
            acknowledged.append(parent.stdout.readline())
        time.sleep(rng.random() * 0.005)
        os.kill(pid, signal.SIGKILL)
        while (line := parent.stdout.readline()) != "end\n":
            acknowledged.append(line)
        words = [line.split() for line in acknowledged if line.endswith("\n")]
        logged = [(int(step), float(value)) for kind, step, value in (w for w in words if w[0] == "log")]
        # A checkpoint is promised when `save` has waited for it, or a later `save` has returned.
        begun = [w for w in words if w[0] in ("save", "begun")]
        saves = [w[1] for w in begun[:-1]] + [w[1] for w in begun[-1:] if w[0] == "save"]

        (run,), complaints = catalog.list_runs(outputs)
        assert complaints == []
        reading = journal.read(run.files.journal)
        kept = [(e["step"], e["metrics"]["loss"]) for e in reading.events if e["event"] == "batch"]
        assert reading.damages == []
        assert kept[: len(logged)] == logged
        assert len(kept) <= len(logged) + 1
        assert run.status == "KILLED"
        assert [problem for problem in verify_run(run) if "last line" not in problem] == []
        if saves:
            saved_before += 1
            assert str(run.checkpoints[-1]) >= saves[-1]
    parent.stdin.close()
    parent.wait()
    parent.stdout.close()
    parent.stderr.close()
    assert saved_before > 100  # otherwise the kills came too early to mean anything


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_a_read_only_outputs_directory_fails_before_the_first_step_and_is_named(tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    subprocess.run(["mount", "--bind", outputs, outputs], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", outputs], check=True)
        cfg = {"tracking": {"enabled": False, "outputs": str(outputs)}}
        refused = pytest.raises(RunError, match=rf"{outputs}.*Read-only file system.*tracking\.outputs")
        with refused, daypoint.open_run(cfg, quiet=True):
            raise AssertionError("it was opened")
    finally:
        subprocess.run(["umount", outputs], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_a_loud_error_and_nothing_acknowledged_is_lost(tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", outputs], check=True)
    try:
        script = textwrap.dedent(
            f"""
            import daypoint
            with daypoint.open_run({{"tracking": {{"enabled": False, "outputs": {str(outputs)!r}}}}}, quiet=True) as run:
                for _ in run.epochs(1):
                    for step in range(100000):
                        run.log(loss=0.1 * step, lr=0.1)
                        print(step)
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=clean_environment()
        )
        (run,), _ = catalog.list_runs(outputs)
        steps = [e["step"] for e in journal.read(run.files.journal).events if e["event"] == "batch"]
        acknowledged = [int(line) for line in done.stdout.split()]
        assert done.returncode != 0
        assert "JournalError" in done.stderr
        assert "free some space" in done.stderr
        assert len(acknowledged) > 500
        assert steps == acknowledged
    finally:
        subprocess.run(["umount", outputs], check=True)


def test_a_clock_set_back_changes_neither_order_nor_durations_nor_the_directory(tmp_path, monkeypatch):
    real = time.time_ns
    cfg = {"tracking": {"enabled": False, "outputs": str(tmp_path)}}
    with daypoint.open_run(cfg, quiet=True) as run:
        for epoch in run.epochs(2):
            for _ in range(3):
                run.log(loss=1.0)
            if epoch == 0:
                monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)
    events = journal.read(run.directory / "journal.jsonl").events
    batches = [e for e in events if e["event"] == "batch"]
    assert [b["step"] for b in batches] == [0, 1, 2, 3, 4, 5]
    assert batches[3]["time"] < batches[2]["time"]  # the clock was believed, the order does not depend on it
    assert all(0 <= e["seconds"] < 60 for e in events if e["event"] == "epoch")
    stored = catalog.read(run.directory, tmp_path)
    assert 0 <= stored.record["attempts"][0]["seconds"] < 60
    assert [epoch["first_step"] for epoch in stored.epochs] == [0, 3]


LOGGER = """
    import sys, daypoint
    name, steps, uri = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    cfg = {"name": name, "tracking": {"uri": uri, "experiment": "many", "name": name, "wait_seconds": 400}}
    with daypoint.open_run(cfg, quiet=True) as run:
        for step in range(steps):
            run.log(loss=step / 7)
"""


def logged_by_many(project, uri, processes, steps):
    (project.root / "logger.py").write_text(textwrap.dedent(LOGGER))
    running = [project.start("logger.py", f"p{i}", steps, uri) for i in range(processes)]
    for process in running:
        output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, output


def points_by_name(store):
    """{run name: [(step, value)]} of a SQLite store."""
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT r.name, m.step, m.value, r.status FROM metrics m JOIN runs r ON r.run_uuid = m.run_uuid "
            "WHERE m.key = 'loss' ORDER BY r.name, m.step"
        ).fetchall()
    connection.close()
    found = {}
    for name, step, value, status in rows:
        assert status == "FINISHED"
        found.setdefault(name, []).append((step, value))
    return found


def test_sixteen_processes_into_one_sqlite_store_lose_no_point(project):
    store = project.root / "mlruns" / "mlflow.db"
    logged_by_many(project, f"sqlite:///{store}", 16, 2000)
    expected = [(step, step / 7) for step in range(2000)]
    found = points_by_name(store)
    assert Counter(map(len, found.values())) == {2000: 16}
    assert all(points == expected for points in found.values())


@pytest.mark.services
def test_sixteen_processes_into_one_server_lose_no_point(project):
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = project.root / "server.db"
    arguments = ["--backend-store-uri", f"sqlite:///{store}", "--port", port, "--workers", "1"]
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    server = project.start(
        "-m", "mlflow", "server", *arguments, cold=True, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", PATH=path
    )
    try:
        end = time.monotonic() + 120
        while True:
            assert server.poll() is None, server.stdout.read()
            assert time.monotonic() < end
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except OSError:
                time.sleep(0.5)
        logged_by_many(project, f"http://127.0.0.1:{port}", 16, 2000)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate()
    found = points_by_name(store)
    expected = [(step, step / 7) for step in range(2000)]
    assert Counter(map(len, found.values())) == {2000: 16}
    assert all(points == expected for points in found.values())


def test_a_million_points_in_one_run_all_arrive(project):
    store = project.root / "mlruns" / "mlflow.db"
    logged_by_many(project, f"sqlite:///{store}", 1, 1_000_000)
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
        count, steps, total = connection.execute(
            "SELECT COUNT(*), COUNT(DISTINCT step), SUM(step) FROM metrics WHERE key = 'loss'"
        ).fetchone()
    connection.close()
    assert (count, steps, total) == (1_000_000, 1_000_000, 999_999 * 1_000_000 // 2)


def everything(store):
    """What a store says of its runs, without what the server makes up."""
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:

        def rows(table, columns):
            statement = f"SELECT u.value, {columns} FROM {table} t JOIN tags u ON u.run_uuid = t.run_uuid AND u.key = 'daypoint.uid'"
            return sorted(connection.execute(statement).fetchall())

        def rows_of_runs(table, run_column, columns):
            statement = f"SELECT u.value, {columns} FROM {table} t JOIN tags u ON u.run_uuid = t.{run_column} AND u.key = 'daypoint.uid'"
            return sorted(connection.execute(statement).fetchall())

        parent = "(SELECT p.value FROM tags p WHERE p.run_uuid = t.value AND p.key = 'daypoint.uid')"
        found = {
            "runs": rows("runs", "t.name, t.status, t.start_time, t.end_time, t.user_id, t.lifecycle_stage"),
            "params": rows("params", "t.key, t.value"),
            "metrics": rows("metrics", "t.key, t.value, t.timestamp, t.step, t.is_nan"),
            "latest": rows("latest_metrics", "t.key, t.value, t.timestamp, t.step, t.is_nan"),
            "tags": rows(
                "tags", f"t.key, CASE WHEN t.key = 'mlflow.parentRunId' THEN {parent} ELSE t.value END"
            ),
            "experiments": sorted(connection.execute("SELECT name FROM experiments").fetchall()),
            "datasets": sorted(connection.execute("SELECT name, digest FROM datasets").fetchall()),
            "logged models": rows_of_runs("logged_models", "source_run_id", "t.name, t.status"),
            "outputs": rows_of_runs("inputs", "source_id", "t.source_type, t.destination_type, t.step"),
            "versions": rows_of_runs("model_versions", "run_id", "t.name, t.status, t.description"),
            "version tags": sorted(
                connection.execute(
                    "SELECT v.name, s.value, t.key, t.value FROM model_versions v "
                    "JOIN model_version_tags t ON t.name = v.name AND t.version = v.version "
                    "JOIN model_version_tags s ON s.name = v.name AND s.version = v.version "
                    "AND s.key = 'daypoint.card_sha256'"
                ).fetchall()
            ),
            "registered": sorted(connection.execute("SELECT name FROM registered_models").fetchall()),
            "aliases": sorted(
                connection.execute(
                    "SELECT a.name, a.alias, t.value FROM registered_model_aliases a JOIN model_version_tags t "
                    "ON t.name = a.name AND t.version = a.version AND t.key = 'daypoint.card_sha256'"
                ).fetchall()
            ),
        }
    connection.close()
    return found


def artifacts(root):
    """{file name: contents} of all artifacts, without the ids that MLflow made up."""
    found = {}
    for path in root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.name == "MLmodel":
                content = re.sub(rb"^(model_id|run_id): .*\n", b"", content, flags=re.MULTILINE)
            elif path.name == "daypoint.json":
                content = re.sub(rb'"MLmodel": \{[^}]*\}', b"", content)
            found.setdefault(path.name, []).append(content)
    return {name: sorted(contents) for name, contents in found.items()}


def test_a_rebuilt_store_differs_from_the_lost_one_in_nothing_but_ids(project):
    project.train("-m", "model=linear,mlp", "trainer.epochs=2", "data.batch_size=256")
    project.train("trainer.epochs=1", "model=linear", "data=linear")
    worse, better = sorted(
        project.runs()[:2], key=lambda run: catalog.read(run, project.outputs).metrics["val/accuracy"]
    )
    for run in (better, worse, project.runs()[2]):
        project.daypoint("package", run)
    until(lambda: sum(key == "daypoint.picture" for _, key, _ in everything(project.store)["tags"]) == 4)
    before, files_before = everything(project.store), artifacts(project.root / "mlruns" / "artifacts")
    assert set(files_before) >= {"curves.png", "sweep.png"}
    done = project.daypoint("sync", "--rebuild")
    assert "the store as it was: " in done.stdout
    assert len(before["versions"]) == 3
    assert len(before["aliases"]) == 2  # the digits' and the linear one's; the worse run has none
    assert everything(project.store) == before
    assert artifacts(project.root / "mlruns" / "artifacts") == files_before
    assert len(list((project.root / "mlruns").glob("mlflow.db.before-*"))) == 1
