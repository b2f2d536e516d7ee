import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import warm
from projects import SUPPORT
from waiting import until
from written_runs import WrittenRun, stored_points, unused_port

import daypoint
from daypoint.record import identity
from daypoint.tracking import store
from daypoint.tracking.courier import Courier, _environment
from daypoint.tracking.sync import sync

# MLflow's use of SQLAlchemy, not ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.usefixtures("warm_python"),
]

TRAINERS = SUPPORT / "trainers.py"


@pytest.fixture(scope="module")
def courier(tables, tmp_path_factory):
    """A real courier process, shared by the tests: that one of them makes it complain must not hurt the others."""
    root = tmp_path_factory.mktemp("first")
    (root / "mlruns").mkdir()
    (root / "mlruns" / "mlflow.db").write_bytes(tables)
    courier = Courier.start()
    run = WrittenRun(root)
    courier.add(run.directory)
    run.end()
    assert courier.close_run(run.directory, 120.0).done  # it has imported everything now
    yield courier
    os.kill(courier.pid, signal.SIGKILL)  # it would go on trying to reach the dead servers for minutes
    courier.shutdown(5.0)


def lives(pid):
    """Whether a process is there, and not only as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def arrived(run):
    return stored_points(run.uri, run.record["uid"]) == sorted(
        run.points, key=lambda point: (point[0], point[3])
    )


def status_of(run):
    with contextlib.closing(sqlite3.connect(store.sqlite_path(run.uri))) as database:
        question = "SELECT status FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid AND t.value = ?"
        return [status for (status,) in database.execute(question, (run.record["uid"],))]


# ---------------------------------------------------------------- the ordinary way


def test_a_run_arrives_while_it_goes_on(courier, root):
    run = WrittenRun(root)
    courier.add(run.directory)
    for step in range(10):
        run.log(loss=step / 7)
    until(lambda: arrived(run))
    assert status_of(run) == ["RUNNING"]
    run.end()
    assert courier.close_run(run.directory).done


def test_at_the_end_everything_is_there_and_its_place_is_known(courier, root):
    run = WrittenRun(root)
    courier.add(run.directory)
    for step in range(5000):
        run.log(loss=step / 7)
    run.end()
    outcome = courier.close_run(run.directory, 60.0)
    assert (outcome.done, outcome.error, outcome.pending_rows) == (True, None, 0)
    assert re.fullmatch(r"#/experiments/\d+/runs/[0-9a-f]{32}\?workflowType=machine_learning", outcome.url)
    assert status_of(run) == ["FINISHED"]
    assert arrived(run)


def test_one_courier_serves_one_run_after_the_other(courier, root):
    pid = courier.pid
    for _ in range(3):
        run = WrittenRun(root)
        courier.add(run.directory)
        run.log(loss=1.0)
        run.end()
        assert courier.close_run(run.directory, 60.0).done
        assert arrived(run)
    assert courier.pid == pid
    assert courier.poll() == []


def test_the_statistics_of_a_sqlite_store_are_made_at_the_end(courier, root):
    run = WrittenRun(root)
    courier.add(run.directory)
    run.log(loss=1.0)
    run.end()
    assert courier.close_run(run.directory, 60.0).done
    path = store.sqlite_path(run.uri)

    def has_statistics():
        with contextlib.closing(sqlite3.connect(path)) as database:
            return bool(
                database.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchall()
            )

    until(has_statistics)


def test_starting_a_courier_takes_no_time():
    started = time.monotonic()
    courier = Courier.start()
    assert time.monotonic() - started < 0.5
    courier.shutdown(30.0)


def test_the_courier_is_polite_and_deaf_to_ctrl_c(monkeypatch):
    monkeypatch.setattr("sys.executable", warm.COLD)
    courier = Courier.start()
    assert os.getsid(courier.pid) == courier.pid
    until(lambda: os.getpriority(os.PRIO_PROCESS, courier.pid) >= 10)
    pid = courier.pid
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.3)
    assert courier.pid == pid
    courier.shutdown(30.0)


def test_a_courier_without_runs_goes_when_it_is_hung_up_on():
    courier = Courier.start()
    pid = courier.pid
    courier.shutdown(30.0)
    assert not Path(f"/proc/{pid}").exists()  # not even as a zombie


def test_importing_the_courier_imports_nothing_heavy():
    script = "import daypoint.tracking.courier, sys; print([m for m in ('mlflow', 'sqlalchemy', 'torch') if m in sys.modules])"
    done = subprocess.run([warm.COLD, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_courier_finds_this_package_and_none_of_its_wings_as_a_package_of_its_own():
    script = "import daypoint, hydra, importlib.util; print(daypoint.__file__); print(importlib.util.find_spec('record'))"
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [daypoint.__file__, "None"]


# ---------------------------------------------------------------- trouble


def test_a_dead_server_bounds_the_end_of_a_run_and_says_what_is_missing(courier, root):
    run = WrittenRun(root, uri=f"http://127.0.0.1:{unused_port()}", artifact_root=None)
    courier.add(run.directory)
    for step in range(100):
        run.log(loss=step / 7)
    run.end()
    left = []
    started = time.monotonic()
    outcome = courier.close_run(run.directory, 2.0, left.append)
    assert 1.9 < time.monotonic() - started < 3.5
    assert (outcome.done, outcome.url, outcome.pending_rows) == (False, None, 102)
    assert "Connection refused" in outcome.error
    assert len(left) == 1
    assert 0 < left[0] <= 1.0
    assert any("Connection refused" in text for text in courier.poll())
    assert "Connection refused" in run.files.courier_log.read_text()


def test_the_same_trouble_is_told_once(courier, root):
    run = WrittenRun(root, uri=f"http://127.0.0.1:{unused_port()}", artifact_root=None)
    courier.add(run.directory)
    told = []

    def hear():
        told.extend(text for text in courier.poll() if run.uri.rpartition(":")[2] in text)
        return told

    until(hear)
    time.sleep(3.0)  # it has tried again
    assert len(hear()) == 1
    run.die()


def test_trouble_that_waiting_does_not_cure_is_not_waited_for(courier, root):
    first = WrittenRun(root)
    first.end()
    sync([first.directory])
    client = store.connect(first.uri)
    experiment_id = client.get_experiment_by_name("digits").experiment_id
    client.delete_experiment(experiment_id)
    run = WrittenRun(root)
    courier.add(run.directory)
    run.end()
    started = time.monotonic()
    outcome = courier.close_run(run.directory, 60.0)
    assert time.monotonic() - started < 20.0
    assert "deleted in MLflow; restore it with" in outcome.error
    client.restore_experiment(experiment_id)
    assert courier.close_run(run.directory, 60.0).done


def test_a_directory_that_is_no_run_troubles_nobody_else(courier, root):
    courier.add(root)
    run = WrittenRun(root)
    courier.add(run.directory)
    run.log(loss=1.0)
    run.end()
    assert courier.close_run(run.directory, 60.0).done
    assert any("found no run.json" in text for text in courier.poll())


def test_what_stood_in_the_way_is_forgotten_when_everything_is_there(courier, root):
    run = WrittenRun(root)
    run.files.courier_log.write_text("an older complaint\n")
    courier.add(run.directory)
    run.end()
    assert courier.close_run(run.directory, 60.0).done
    assert not run.files.courier_log.exists()


def test_runs_that_a_dead_courier_left_are_finished_by_the_next(root):
    killed, pending = WrittenRun(root), WrittenRun(root)
    killed.log(loss=1.0)
    killed.die()
    pending.log(loss=2.0)
    pending.end()
    pending.files.courier_log.write_text("the server was away\n")
    run = WrittenRun(root)
    courier = Courier.start()
    courier.add(run.directory)
    until(lambda: arrived(killed) and arrived(pending))
    until(lambda: status_of(killed) == ["KILLED"] and status_of(pending) == ["FINISHED"])
    until(lambda: not pending.files.courier_log.exists())
    assert identity.read_run(killed.directory)["status"] == "KILLED"
    assert identity.read_run(run.directory)["status"] == "RUNNING"
    run.end()
    assert courier.close_run(run.directory, 60.0).done
    courier.shutdown(30.0)


# ---------------------------------------------------------------- death


class Trainer:
    """A fake trainer in a process of its own."""

    def __init__(self, root, mode, steps, **environment):
        command = [warm.COLD, str(TRAINERS), str(root), mode, str(steps)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "COURIERS_PYTHON": warm.python(), **environment},
            start_new_session=True,
        )
        self.directory = Path(self.process.stdout.readline().strip())
        self.record = identity.read_run(self.directory)
        self.uri = self.record["tracking_uri"]
        self.acknowledged = 0

    def read_until(self, word):
        for line in self.process.stdout:
            if line.strip() == str(word):
                return
            self.acknowledged += 1
        raise AssertionError("it ended before")

    def courier_pids(self):
        listed = subprocess.run(
            ["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True
        ).stdout
        wanted = f"daypoint.tracking.courier {self.process.pid}"
        return [int(line.split()[0]) for line in listed.splitlines() if line.endswith(wanted)]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def journal_points(self):
        events = [json.loads(line) for line in (self.directory / "journal.jsonl").read_text().splitlines()]
        return sorted(
            (key, float(value), event["time"], event["step"])
            for event in events
            if event["event"] == "batch"
            for key, value in event["metrics"].items()
        )

    def stored(self):
        return sorted(stored_points(self.uri, self.record["uid"]))


def test_a_killed_trainer_leaves_a_killed_run_with_every_point(root):
    trainer = Trainer(root, "log", 300)
    trainer.read_until("ready")
    (courier_pid,) = trainer.courier_pids()
    trainer.kill()
    until(lambda: not lives(courier_pid), 120.0)
    assert status_of(trainer) == ["KILLED"]
    assert identity.read_run(trainer.directory)["status"] == "KILLED"
    assert len(trainer.stored()) == 2 * trainer.acknowledged == 600
    assert trainer.stored() == trainer.journal_points()


@pytest.mark.slow
def test_a_child_that_outlives_a_killed_trainer_hides_nothing(root):
    trainer = Trainer(root, "fork", 100)
    trainer.read_until("ready")
    (courier_pid,) = trainer.courier_pids()
    trainer.kill()
    until(lambda: not lives(courier_pid), 120.0)
    os.killpg(trainer.process.pid, signal.SIGKILL)
    assert status_of(trainer) == ["KILLED"]
    assert trainer.stored() == trainer.journal_points()


@pytest.mark.slow
def test_a_forked_child_can_neither_use_nor_end_the_courier(root):
    trainer = Trainer(root, "use", 100)
    trainer.read_until("ready")
    (courier_pid,) = trainer.courier_pids()
    assert lives(courier_pid)
    trainer.kill()
    until(lambda: not lives(courier_pid), 120.0)
    assert trainer.stored() == trainer.journal_points()


@pytest.mark.slow
def test_a_trainer_that_does_not_wait_is_delivered_all_the_same(root):
    trainer = Trainer(root, "leave", 500)
    pids = trainer.courier_pids()
    assert trainer.process.wait(60) == 0
    until(lambda: not any(map(lives, pids)), 120.0)
    assert status_of(trainer) == ["FINISHED"]
    assert trainer.stored() == trainer.journal_points()
    trainer.process.stdout.close()


@pytest.mark.slow
def test_a_killed_courier_is_replaced_and_nothing_is_lost(root):
    run = WrittenRun(root)
    courier = Courier.start()
    courier.add(run.directory)
    for step in range(3000):
        run.log(loss=step / 7)
    until(lambda: stored_points(run.uri, run.record["uid"]))
    first = courier.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: courier.pid != first)
    assert any("the courier died (exit code -9) and is replaced" in text for text in courier.poll())
    for step in range(3000):
        run.log(loss=step / 7)
    os.kill(courier.pid, signal.SIGKILL)
    run.end()
    outcome = courier.close_run(run.directory, 120.0)
    assert outcome.done, outcome
    assert arrived(run)
    courier.shutdown(30.0)


@pytest.mark.slow
def test_a_courier_whose_trainer_died_makes_way_for_that_of_the_next_attempt(root):
    run = WrittenRun(root)
    script = (
        "import sys, time; from pathlib import Path; from daypoint.tracking.courier import Courier; "
        "Courier.shared().add(Path(sys.argv[1])); print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(run.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as former:
        former.stdout.readline()
        until(lambda: status_of(run))  # its courier has the lock now
        courier = Courier.start()
        courier.add(run.directory)
        run.log(loss=1.0)
        former.kill()
    run.log(loss=2.0)
    run.end()
    outcome = courier.close_run(run.directory, 60.0)
    assert outcome.done, outcome
    assert arrived(run)
    courier.shutdown(30.0)


def test_a_courier_that_dies_again_and_again_is_not_replaced_for_ever(root, monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # no Python starts
    run = WrittenRun(root)
    courier = Courier.start()
    courier.add(run.directory)
    run.end()
    started = time.monotonic()
    outcome = courier.close_run(run.directory, 60.0)
    assert time.monotonic() - started < 10.0
    assert not outcome.done
    assert outcome.pending_rows == 2
    assert "is not replaced" in courier.poll()[-1]
    courier.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(8))
def test_killing_both_at_any_moment_and_sending_again_loses_and_doubles_nothing(root, moment):
    trainer = Trainer(root, "log", 2000)
    (courier_pid,) = trainer.courier_pids()
    time.sleep(1.0 + 0.5 * moment)
    os.kill(courier_pid, signal.SIGKILL)
    trainer.kill()
    report = sync([trainer.directory])
    assert report.ok, report.lines
    assert trainer.stored() == trainer.journal_points()
    assert status_of(trainer) == ["KILLED"]


@pytest.mark.slow
def test_sigterm_lets_the_courier_finish(root):
    trainer = Trainer(root, "log", 100_000)
    (courier_pid,) = trainer.courier_pids()
    until(trainer.stored)
    os.kill(courier_pid, signal.SIGTERM)
    trainer.kill()
    until(lambda: not lives(courier_pid), 60.0)
    assert status_of(trainer) == ["KILLED"]
    assert trainer.stored() == trainer.journal_points()


# ---------------------------------------------------------------- many, long, slow


@pytest.mark.slow
def test_eight_trainers_at_once_on_a_fresh_store_all_arrive(tmp_path):
    trainers = [Trainer(tmp_path, "wait", 200) for _ in range(8)]
    assert [trainer.process.wait(280) for trainer in trainers] == [0] * 8
    for trainer in trainers:
        assert status_of(trainer) == ["FINISHED"]
        assert trainer.stored() == trainer.journal_points()
        trainer.process.stdout.close()


@pytest.mark.slow
def test_a_locked_store_delays_the_courier_but_never_the_trainer(root):
    run = WrittenRun(root)
    courier = Courier.start()
    courier.add(run.directory)
    run.log(loss=0.0)
    until(lambda: arrived(run))
    longest = 0.0
    with contextlib.closing(sqlite3.connect(store.sqlite_path(run.uri), isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        deadline = time.monotonic() + 72.0
        while time.monotonic() < deadline:
            started = time.monotonic()
            run.log(loss=1.0)
            courier.poll()
            longest = max(longest, time.monotonic() - started)
            time.sleep(0.01)
        database.execute("ROLLBACK")
    assert longest < 1.0
    run.end()
    outcome = courier.close_run(run.directory, 60.0)
    assert outcome.done, outcome
    assert arrived(run)
    courier.shutdown(30.0)


@pytest.mark.slow
def test_a_hundred_thousand_points_arrive(root):
    run = WrittenRun(root)
    for step in range(33_334):
        run.log(loss=step / 7, lr=0.1, acc=1.0)
    run.end()
    assert sync([run.directory]).runs[0].points == 100_002
    assert arrived(run)


class Refusing(BaseHTTPRequestHandler):
    """A server that answers 500 to everything."""

    def do_GET(self):
        self.send_error(500)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_server_that_answers_500_bounds_the_end_of_a_run(courier, root):
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = WrittenRun(root, uri=f"http://127.0.0.1:{server.server_port}", artifact_root=None)
    courier.add(run.directory)
    run.end()
    started = time.monotonic()
    outcome = courier.close_run(run.directory, 3.0)
    assert time.monotonic() - started < 4.5
    assert not outcome.done
    assert "500" in outcome.error
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_server_that_never_answers_bounds_the_end_of_a_run(root):
    with socket.create_server(("127.0.0.1", 0)) as server:
        run = WrittenRun(root, uri=f"http://127.0.0.1:{server.getsockname()[1]}", artifact_root=None)
        courier = Courier.start()
        courier.add(run.directory)
        run.end()
        started = time.monotonic()
        outcome = courier.close_run(run.directory, 5.0)
        assert time.monotonic() - started < 6.5
        assert (outcome.done, outcome.pending_rows) == (False, 2)
        os.kill(courier.pid, signal.SIGKILL)
        courier.shutdown(5.0)


def start_server(path, port):
    """An MLflow server on a SQLite file, ready to answer."""
    command = [
        warm.COLD,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{path}",
        "--port",
        str(port),
    ]
    command += ["--workers", "1", "--artifacts-destination", str(path.parent / "served")]
    scripts = os.pathsep.join([str(Path(warm.COLD).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": scripts, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(
        command,
        env=environment,
        cwd=path.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def answers():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False

    until(answers, 120.0)
    return server


@pytest.mark.services
def test_a_server_that_dies_and_comes_back_has_everything_in_the_end(root):
    path, port = root / "mlruns" / "mlflow.db", unused_port()
    run = WrittenRun(root, uri=f"http://127.0.0.1:{port}", artifact_root=None)
    server = start_server(path, port)
    courier = Courier.start()
    try:
        courier.add(run.directory)
        for step in range(3000):
            run.log(loss=step / 7)
        until(lambda: stored_points(f"sqlite:///{path}", run.record["uid"]))
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        for step in range(3000):
            run.log(loss=step / 7)
        time.sleep(3.0)
        server = start_server(path, port)
        run.end()
        outcome = courier.close_run(run.directory, 120.0)
        assert outcome.done, outcome
        run_id = re.search(r"/runs/([0-9a-f]{32})", outcome.url)[1]
        assert outcome.url.startswith(f"{run.uri}/#/experiments/")
        stored = stored_points(f"sqlite:///{path}", run.record["uid"])
        assert stored == sorted(run.points, key=lambda point: point[3])
        artifacts = {file.path for file in store.connect(run.uri).list_artifacts(run_id)}
        artifacts.discard("curves.png")  # comes when nobody waits any more
        assert artifacts == {run.files.config.name, run.files.train_log.name, "run.json"}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        courier.shutdown(30.0)
