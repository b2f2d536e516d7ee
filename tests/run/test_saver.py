"""Saving beside the training: what is copied when, what is told when, and what a slow or a full disk does.

The disk is the system's, but for its fsync in the saving thread, which waits until a test lets it go on.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
from projects import clean_environment
from waiting import until

import daypoint
from daypoint.again.verify import verify_run
from daypoint.base.errors import CheckpointError, RunError
from daypoint.checkpoints import checkpoint
from daypoint.checkpoints.packing import Spare
from daypoint.checkpoints.snapshot import Snapshot
from daypoint.record import catalog, identity, journal, shelf
from daypoint.run import saver


@pytest.fixture
def open_run(tmp_path):
    return lambda **options: daypoint.open_run(
        {"tracking": {"enabled": False, "outputs": str(tmp_path)}}, monitor="loss", **options
    )


class Disk:
    """Holds or refuses what the saving thread wants to have on the disk."""

    def __init__(self):
        self.free = threading.Event()
        self.error = None
        self.reached = threading.Event()

    def fsync(self, descriptor):
        if threading.current_thread().name == "daypoint-save":
            self.reached.set()
            assert self.free.wait(60)
            if self.error is not None:
                raise self.error
        really_fsync(descriptor)


really_fsync = os.fsync
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk(monkeypatch):
    """A disk that is free from the start; clear `free` to make it hang."""
    made = Disk()
    made.free.set()
    monkeypatch.setattr(os, "fsync", made.fsync)
    yield made
    made.free.set()
    until(lambda: all(thread.name != "daypoint-save" for thread in threading.enumerate()))


def linear(value=1.0):
    model = torch.nn.Linear(2, 2)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, value)
    return model


def events(run, kind="checkpoint"):
    return [e for e in journal.read(run.directory / "journal.jsonl").events if e["event"] == kind]


def test_save_returns_before_the_disk_has_it_and_the_end_waits(open_run, disk):
    disk.free.clear()
    with open_run() as run:
        run.log(loss=1.0)
        path = run.save(model=linear())
        assert path == run.directory / "checkpoints" / "step000001"
        assert not path.exists()
        threading.Timer(0.1, disk.free.set).start()
    assert shelf.verify(path) == []
    assert (run.directory / "checkpoints" / "last.json").exists()


def test_what_training_does_meanwhile_is_not_in_the_checkpoint(open_run, disk):
    model = linear(1.0)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    buffers = [torch.full_like(parameter, 2.0) for parameter in model.parameters()]
    for parameter, buffer in zip(model.parameters(), buffers, strict=True):
        optimizer.state[parameter]["momentum_buffer"] = buffer
    seen, array, order = torch.tensor(3), np.array([4.0]), {"next": [5]}
    disk.free.clear()
    with open_run() as run:
        run.log(loss=1.0)
        path = run.save(model=model, optimizer=optimizer, seen=seen, array=array, order=order)
        for tensor in (*model.parameters(), *buffers, seen):
            tensor.data.fill_(-7)
        array[:] = -7
        order["next"].append(-7)
        run.log(loss=-7.0)
        disk.free.set()
    other = linear(0.0)
    restored = torch.optim.SGD(other.parameters(), momentum=0.9)
    state, card = checkpoint.restore(path, model=other, optimizer=restored)
    assert all((parameter == 1).all() for parameter in other.parameters())
    assert all((entry["momentum_buffer"] == 2).all() for entry in restored.state.values())
    assert (state.extra["seen"], state.extra["array"], state.extra["order"]) == (3, [4.0], {"next": [5]})
    assert card["metrics"] == {"loss": 1.0}


def test_a_save_waits_for_the_one_before(open_run, disk):
    disk.free.clear()
    with open_run() as run:
        run.log(loss=1.0)
        first = run.save(model=linear())
        run.log(loss=1.0)
        threading.Timer(0.2, disk.free.set).start()
        began = time.monotonic()
        second = run.save(model=linear())
        assert time.monotonic() - began > 0.1
        assert shelf.verify(first) == []
    assert shelf.verify(second) == []


def test_the_journal_has_a_checkpoint_only_when_the_disk_has_it(open_run, disk):
    disk.free.clear()
    with open_run() as run:
        for loss in (3.0, 2.0):
            run.log(loss=loss)
        path = run.save(model=linear())
        run.log(loss=1.0)
        assert disk.reached.wait(60)
        assert events(run) == []
        disk.free.set()
        until(path.exists)
        until(lambda: run.log(loss=1.0) or events(run))
        (event,) = events(run)
        assert (event["step"], event["path"], event["metrics"]) == (
            2,
            "checkpoints/step000002",
            {"loss": 2.0},
        )


def test_a_finished_run_has_all_its_checkpoints_in_the_journal_before_its_end(open_run):
    with open_run() as run:
        for _ in run.epochs(3):
            run.log(loss=1.0)
            run.save(model=linear())
    found = journal.read(run.directory / "journal.jsonl").events
    assert [e["step"] for e in found if e["event"] == "checkpoint"] == [1, 2, 3]
    assert [e["epoch"] for e in found if e["event"] == "checkpoint"] == [0, 1, 2]
    assert found[-1]["event"] == "end"


def test_a_failed_write_is_told_by_the_next_save_which_saves_all_the_same(open_run, disk):
    disk.error = FULL
    with open_run() as run:
        run.log(loss=1.0)
        first = run.save(model=linear())
        until(lambda: run._saver._failures)
        disk.error = None
        run.log(loss=1.0)
        with pytest.raises(CheckpointError, match="step000001: cannot write the checkpoint: No space left"):
            run.save(model=linear())
    assert not first.exists()
    assert shelf.verify(run.directory / "checkpoints" / "step000002") == []
    assert [e["step"] for e in events(run)] == [2]


def test_a_failed_last_write_fails_the_run(open_run, disk):
    def train():
        with open_run() as run:
            runs.append(run)
            run.log(loss=1.0)
            run.save(model=linear(), wait=True)
            disk.error = FULL
            run.log(loss=2.0)
            run.save(model=linear())

    runs = []
    with pytest.raises(CheckpointError, match="step000002: cannot write"):
        train()
    (run,) = runs
    record = identity.read_run(run.directory)
    assert record["status"] == "FAILED"
    assert "No space left on device" in record["attempts"][0]["error"]["message"]
    assert [e["metrics"] for e in events(run, "batch")] == [{"loss": 1.0}, {"loss": 2.0}]
    stored = catalog.read(run.directory, run.directory.parent.parent)
    assert [path.name for path in stored.checkpoints] == ["step000001"]
    assert verify_run(stored) == []


def test_beside_another_error_a_failed_write_is_a_warning(open_run, disk, capsys):
    disk.error = FULL
    with pytest.raises(ZeroDivisionError), open_run() as run:
        run.log(loss=1.0)
        run.save(model=linear())
        raise ZeroDivisionError
    assert "step000001: cannot write the checkpoint: No space left on device" in capsys.readouterr().err
    assert identity.read_run(run.directory)["attempts"][0]["error"]["type"] == "ZeroDivisionError"


def test_an_unexpected_error_of_the_thread_is_told_too(open_run, disk):
    disk.error = ArithmeticError("odd")
    with pytest.raises(CheckpointError, match=r"step000000: .*ArithmeticError: odd"), open_run() as run:
        run.save(model=linear())


def test_the_second_copy_is_made_in_the_memory_of_the_first_and_the_end_gives_it_back(open_run, disk):
    model, found = torch.nn.Linear(64, 64), []
    gc.collect()
    others = [of for of in gc.get_objects() if type(of) in (Snapshot, Spare)]  # of errors that pytest keeps

    def alive(kind):
        return [
            of for of in gc.get_objects() if type(of) is kind and all(of is not other for other in others)
        ]

    def places():
        assert disk.reached.wait(60)
        (copy,) = alive(Snapshot)
        return {name: tensor.data_ptr() for name, tensor in copy.weights.items()}

    with open_run() as run:
        for _ in range(2):
            run.log(loss=1.0)
            disk.free.clear()
            disk.reached.clear()
            run.save(model=model)
            found.append(places())
            disk.free.set()
            assert run._saver._idle.wait(60)
    assert found[0] == found[1]
    assert alive(Snapshot) == alive(Spare) == []


def test_with_wait_the_checkpoint_is_there_at_once(open_run, disk):
    with open_run() as run:
        run.log(loss=1.0)
        path = run.save(model=linear(), wait=True)
        assert shelf.verify(path) == []
        assert [e["step"] for e in events(run)] == [1]
        assert not disk.reached.is_set()  # no thread


def test_with_wait_a_failure_is_raised_at_once(open_run, tmp_path):
    with open_run() as run:
        run.log(loss=1.0)
        (run.directory / "checkpoints").touch()
        with pytest.raises(CheckpointError, match="step000001: cannot write"):
            run.save(model=linear(), wait=True)
    assert identity.read_run(run.directory)["status"] == "FINISHED"


def test_what_cannot_be_stored_is_refused_at_once_and_by_name(open_run):
    with open_run() as run, pytest.raises(CheckpointError, match=r"extra\.loader"):
        run.save(model=linear(), loader=object())


def test_old_checkpoints_are_thinned_out(open_run):
    with open_run(keep=1) as run:
        for loss in (1.0, 3.0, 2.0):
            run.log(loss=loss)
            run.save(model=linear())
    names = sorted(path.name for path in (run.directory / "checkpoints").glob("step*"))
    assert names == ["step000001", "step000003"]


def test_a_long_wait_at_the_end_is_said(open_run, disk, monkeypatch, capsys):
    monkeypatch.setattr(saver, "SILENT_SECONDS", 0.05)
    disk.free.clear()
    with open_run() as run:
        run.save(model=linear())
        threading.Timer(0.3, disk.free.set).start()
    assert "waiting for the checkpoint to be on the disk" in capsys.readouterr().out


def test_ctrl_c_ends_the_wait_at_the_end(open_run, disk, capsys):
    disk.free.clear()
    with pytest.raises(KeyboardInterrupt), open_run() as run:
        run.log(loss=1.0)
        path = run.save(model=linear())
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert not path.exists()
    assert f"{path}: not waited for" in capsys.readouterr().err
    assert identity.read_run(run.directory)["status"] == "KILLED"
    assert events(run, "end")[0]["status"] == "KILLED"


def test_a_signal_stops_with_a_checkpoint_that_is_on_the_disk(open_run, disk):
    disk.free.clear()
    model = linear()
    with pytest.raises(KeyboardInterrupt), open_run() as run:
        run.restore(model=model)
        threading.Timer(0.2, disk.free.set).start()
        signal.raise_signal(signal.SIGINT)
        run.log(loss=1.0)
        raise AssertionError("it went on")
    assert shelf.verify(run.directory / "checkpoints" / "step000001") == []
    assert [e["step"] for e in events(run)] == [1]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12: a fork beside threads
def test_a_forked_child_neither_saves_nor_waits(open_run, disk):
    disk.free.clear()
    with open_run() as run:
        run.save(model=linear())
        assert disk.reached.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits is killed
            try:
                run.save(model=linear())
            except RunError:
                run._end("FINISHED", None)
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        disk.free.set()
    assert identity.read_run(run.directory)["status"] == "FINISHED"


def test_a_process_that_just_exits_leaves_the_checkpoint_before(tmp_path):
    script = f"""
        import os, time, torch, daypoint
        model = torch.nn.Linear(2, 2)
        with daypoint.open_run({{"tracking": {{"enabled": False, "outputs": {str(tmp_path)!r}}}}}, quiet=True) as run:
            run.log(loss=1.0)
            run.save(model=model, wait=True)
            run.log(loss=2.0)
            os.fsync = lambda _: time.sleep(60)
            run.save(model=model)
            time.sleep(0.2)
            os._exit(0)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(command, check=True, env=clean_environment(), timeout=50)
    (run,), _ = catalog.list_runs(tmp_path)
    assert [path.name for path in run.checkpoints] == ["step000001"]
    assert len(list(run.files.checkpoints.glob(".*.tmp"))) == 1
    assert verify_run(run) == []
