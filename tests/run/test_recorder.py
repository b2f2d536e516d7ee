"""The recorder, with values that are read later. CPU tensors stand in for those of an accelerator (DAYPOINT_DEFER=1)."""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import daypoint
from daypoint.base.day import RunFiles
from daypoint.base.errors import ConfigError, JournalError, RunError, ScalarError
from daypoint.record import journal, spool
from daypoint.record.journal import Journal
from daypoint.run.recorder import Recorder
from daypoint.scalars import ring
from daypoint.scalars.ring import STEPS, Chunk, Ring


@pytest.fixture
def deferring(monkeypatch):
    """Tensors on the CPU are deferred, and half a second never passes."""
    monkeypatch.setenv("DAYPOINT_DEFER", "1")
    monkeypatch.setattr(ring, "SECONDS", 1e9)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def open_run(directory):
    """Opens a run in `directory`; each test opens one."""
    return lambda **tracking: daypoint.open_run(
        {"tracking": {"enabled": False, **tracking}}, run_dir=directory, monitor="loss", quiet=True
    )


@contextlib.contextmanager
def recording(directory, **options):
    """A recorder that is not part of a run."""
    directory.mkdir()
    files = RunFiles(directory, "20260328")
    with contextlib.closing(Journal.create(files.journal)) as opened:
        yield Recorder(opened, files, **options)


@pytest.fixture
def recorder(directory, deferring):
    with recording(directory) as made:
        made.log({"first": torch.tensor(0.0)})  # which goes at once; what follows has to wait
        made.flush()
        yield made


def events(directory, kind="batch"):
    return [e for e in journal.read(directory / "journal.jsonl").events if e["event"] == kind]


def steps(directory):
    return [event["step"] for event in events(directory)]


def log_tensors(recorder, count):
    for _ in range(count):
        recorder.log({"loss": torch.tensor(float(recorder.step))})


# ---------------------------------------------------------------- what is recorded is the same

FLOATS = st.floats(width=32)
VALUES = st.one_of(
    FLOATS,
    st.integers(-(2**70), 2**70),
    st.booleans(),
    FLOATS.map(torch.tensor),
    FLOATS.map(lambda x: torch.tensor(x, dtype=torch.bfloat16)),
    FLOATS.map(np.float32),
    st.integers(-(2**63), 2**63 - 1).map(lambda x: torch.tensor(x, dtype=torch.int64)),
    st.integers(0, 2**64 - 1).map(lambda x: torch.tensor(x, dtype=torch.uint64)),
    st.booleans().map(torch.tensor),
)
CALLS = st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, min_size=1), min_size=1, max_size=8)


def record(directory, calls, defer, monkeypatch):
    monkeypatch.setenv("DAYPOINT_DEFER", defer)
    told = []
    with recording(directory, on_nonfinite=lambda *found: told.append(repr(found))) as recorder:
        for epoch in range(3):
            recorder.begin_epoch(epoch)
            for metrics in calls * 9:
                recorder.log(metrics)
            recorder.log_epoch(calls[0])
            recorder.end_epoch()
            recorder.log(calls[0])
        recorder.flush()
    found = journal.read(directory / "journal.jsonl").events
    left = [{key: value for key, value in e.items() if key not in ("time", "seconds", "at")} for e in found]
    return repr(left), told, repr(recorder.latest)  # repr, since NaN is not equal to itself


@settings(max_examples=25, deadline=None)
@given(calls=CALLS)
def test_deferred_and_immediate_recording_leave_the_same_journal(tmp_path_factory, calls):
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        assert record(runs / "later", calls, "1", patch) == record(runs / "now", calls, "0", patch)


def test_a_change_in_place_after_log_is_not_recorded(directory, recorder):
    loss = torch.tensor(1.0)
    recorder.log({"loss": loss})
    loss.add_(1)
    recorder.log({"loss": loss})
    loss.zero_()
    recorder.flush()
    assert [e["metrics"]["loss"] for e in events(directory)[1:]] == [1.0, 2.0]


def test_an_event_has_the_time_of_its_call(directory, recorder):
    before = time.time_ns() // 1_000_000
    log_tensors(recorder, 1)
    after = time.time_ns() // 1_000_000
    time.sleep(0.05)
    recorder.flush()
    assert before <= events(directory)[-1]["time"] <= after


def test_a_step_that_was_given_is_kept(directory, recorder):
    recorder.log({"loss": torch.tensor(1.0)}, step=100)
    recorder.log({"loss": torch.tensor(2.0)})
    recorder.flush()
    assert steps(directory)[1:] == [100, 101]
    assert recorder.step == 102


# ---------------------------------------------------------------- when it is recorded


@pytest.mark.parametrize("setting", ["", "0"])
def test_a_tensor_on_the_cpu_outlives_the_process_when_log_returns(directory, setting, monkeypatch, tmp_path):
    monkeypatch.setenv("DAYPOINT_DEFER", setting)
    with recording(directory) as recorder:
        for step in range(5):
            log_tensors(recorder, 1)
            died = shutil.copytree(directory, tmp_path / f"died at {step}")
            spool.recover(died / "journal.spool", died / "journal.jsonl")
            assert steps(died) == list(range(step + 1))


def test_never_more_than_64_steps_wait(directory, recorder):
    for step in range(1, 300):
        log_tensors(recorder, 1)
        assert len(steps(directory)) > step - STEPS
    assert len(steps(directory)) < 300  # they did wait


def test_half_a_second_and_a_step_is_the_longest_wait_of_a_slow_loop(directory, recorder, monkeypatch):
    monkeypatch.setattr(ring, "SECONDS", 0.01)
    for step in range(1, 5):
        time.sleep(0.02)
        log_tensors(recorder, 1)
        assert steps(directory) == list(range(step))


def test_numbers_behind_a_deferred_value_wait_for_their_turn(directory, recorder):
    recorder.log({"loss": torch.tensor(1.0)})
    recorder.log({"loss": 2.0})
    assert steps(directory) == [0]
    recorder.log({"loss": torch.tensor(3.0)})
    recorder.flush()
    assert [e["metrics"].get("loss") for e in events(directory)[1:]] == [1.0, 2.0, 3.0]


def test_numbers_are_immediate_again_when_nothing_waits_before_them(directory, recorder):
    log_tensors(recorder, 1)
    recorder.flush()
    recorder.log({"loss": 2.0})
    assert steps(directory) == [0, 1, 2]


@pytest.mark.parametrize(
    "event",
    [
        lambda r: r.end_epoch(),
        lambda r: r.log_epoch({"accuracy": 0.5}),
        lambda r: r.flush(),
    ],
    ids=["end_epoch", "log_epoch", "flush"],
)
def test_all_is_recorded_before(directory, recorder, event):
    recorder.begin_epoch(0)
    log_tensors(recorder, 3)
    assert steps(directory) == [0]
    event(recorder)
    found = journal.read(directory / "journal.jsonl").events
    assert [e["step"] for e in found[:4]] == [0, 1, 2, 3]
    assert {e["event"] for e in found[:4]} == {"batch"}


def test_what_was_logged_before_an_epoch_is_not_in_it(directory, recorder):
    log_tensors(recorder, 2)
    recorder.begin_epoch(0)
    log_tensors(recorder, 3)
    assert recorder.end_epoch()["stats"]["loss"]["count"] == 3
    assert [e["epoch"] for e in events(directory)] == [None, None, None, 0, 0, 0]


def test_values_of_log_epoch_are_read_at_once(directory, recorder):
    recorder.log_epoch({"accuracy": torch.tensor(0.5)})
    assert events(directory, "epoch_metrics")[0]["metrics"] == {"accuracy": 0.5}


def test_another_setting_of_defer_is_refused(directory, monkeypatch):
    monkeypatch.setenv("DAYPOINT_DEFER", "yes")
    with (
        pytest.raises(ConfigError, match=r"DAYPOINT_DEFER: expected 0 or 1, found 'yes'"),
        recording(directory),
    ):
        pass


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(1),
        torch.ones(8),
        torch.tensor(1j),
        torch.tensor(1.0, device="meta"),
        torch.tensor(1.0).to_sparse(),
    ],
    ids=["shape (1,)", "shape (8,)", "complex", "meta", "sparse"],
)
def test_a_wrong_value_is_refused_at_the_call_and_leaves_nothing_of_it(directory, recorder, value):
    recorder.log({"loss": torch.tensor(1.0)})
    with pytest.raises(ScalarError, match=r"^step 2: acc: expected a scalar"):
        recorder.log({"loss": torch.tensor(2.0), "acc": value}, batch_size=8)
    assert recorder.step == 2
    recorder.log({"loss": torch.tensor(3.0)})
    recorder.flush()
    assert [(e["step"], e["metrics"]) for e in events(directory)[1:]] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 3.0}),
    ]


def test_a_value_that_the_ring_cannot_hold_is_recorded_all_the_same(directory, recorder):
    class Odd(torch.Tensor):
        pass

    recorder.log({"odd": torch.tensor(1.5).as_subclass(Odd)})
    assert events(directory)[-1]["metrics"] == {"odd": 1.5}


# ---------------------------------------------------------------- what is found late


def test_nan_is_told_with_its_metric_and_its_own_step(directory, deferring):
    told = []
    with recording(directory, on_nonfinite=lambda *found: told.append(found)) as recorder:
        for loss in (0.0, 1.0, math.nan, 3.0, math.inf):
            recorder.log({"loss": torch.tensor(loss), "lr": 0.1})
        recorder.flush()
    assert [(name, str(value), step) for name, value, step in told] == [
        ("loss", "nan", 2),
        ("loss", "inf", 4),
    ]
    assert [(n["step"], n["text"]) for n in events(directory, "notice")] == [(2, "loss is nan at step 2")]


def test_nan_is_told_at_the_latest_when_its_epoch_ends(recorder):
    told = []
    recorder.on_nonfinite = lambda *found: told.append(found)
    recorder.begin_epoch(0)
    recorder.log({"loss": torch.tensor(math.inf)})
    assert told == []
    recorder.end_epoch()
    assert told == [("loss", math.inf, 1)]


def test_a_stop_at_nan_comes_after_all_is_recorded_and_the_epoch_is_closed(directory, open_run, deferring):
    def train():
        with open_run(on_nonfinite="stop") as run:
            for _ in run.epochs(2):
                for loss in (0.0, 1.0, math.nan, 3.0, math.nan):
                    run.log(loss=torch.tensor(loss))

    with pytest.raises(RunError, match="loss: nan at step 2"):
        train()
    assert steps(directory) == [0, 1, 2, 3, 4]
    (epoch,) = events(directory, "epoch")
    assert (epoch["stats"]["loss"]["count"], epoch["stats"]["loss"]["nonfinite"]) == (5, 2)
    assert events(directory, "end")[0]["status"] == "FAILED"


@pytest.mark.parametrize("leave", [True, False], ids=["break", "end"])
def test_a_stop_at_nan_comes_also_when_the_loop_is_left_and_when_the_run_ends(
    directory, open_run, deferring, leave
):
    def train():
        with open_run(on_nonfinite="stop") as run:
            for _ in run.epochs(1) if leave else [0]:
                for loss in (0.0, math.nan):
                    run.log(loss=torch.tensor(loss))
                break

    with pytest.raises(RunError, match="loss: nan at step 1"):
        train()
    assert events(directory, "end")[0]["status"] == "FAILED"


def test_no_checkpoint_is_made_of_a_model_whose_nan_stops_the_run(directory, open_run, deferring):
    def train():
        with open_run(on_nonfinite="stop") as run:
            for loss in (0.0, math.nan):
                run.log(loss=torch.tensor(loss))
            run.save(model=torch.nn.Linear(1, 1))

    with pytest.raises(RunError, match="loss: nan at step 1"):
        train()
    assert not (directory / "checkpoints").exists()


def test_what_a_full_disk_refused_is_tried_again(directory, recorder):
    log_tensors(recorder, 3)
    descriptor = recorder._journal._descriptor
    kept, full = os.dup(descriptor), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    with pytest.raises(JournalError, match="No space left"):
        recorder.flush()
    os.dup2(kept, descriptor)
    os.close(full)
    os.close(kept)
    recorder.flush()
    assert steps(directory) == [0, 1, 2, 3]


class Lost(Chunk):
    """A device that fails when something is brought over from it."""

    def send(self):
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_failed_device_is_an_error_that_names_the_steps_and_what_is_left_is_recorded(
    directory, open_run, deferring
):
    def train():
        with open_run() as run:
            run.log(loss=torch.tensor(0.0))
            assert run.latest == {"loss": 0.0}
            run._recorder._ring = Ring(Lost)
            run._recorder._ring._sent_seconds = time.monotonic()
            for _ in run.epochs(1):
                for step in range(1, 4):
                    run.log(loss=torch.tensor(float(step)), lr=0.1 * step)

    with pytest.raises(
        RunError, match=r"loss: the values of steps 1 to 3 were on the device .* lost with it: CUDA error"
    ):
        train()
    assert [e["metrics"] for e in events(directory)] == [
        {"loss": 0.0},
        *({"lr": 0.1 * step} for step in range(1, 4)),
    ]
    assert "steps 1 to 3" in events(directory, "notice")[0]["text"]
    (end,) = events(directory, "end")
    assert end["status"] == "FAILED"
    assert "steps 1 to 3" in end["error"]


# ---------------------------------------------------------------- through a run


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (lambda: None, "FINISHED"),
        (lambda: sys.exit(0), "FINISHED"),
        (lambda: 1 / 0, "FAILED"),
        (lambda: signal.raise_signal(signal.SIGINT), "KILLED"),
        (lambda: signal.raise_signal(signal.SIGTERM), "KILLED"),
    ],
    ids=["end", "exit", "exception", "sigint", "sigterm"],
)
@pytest.mark.parametrize("in_epoch", [True, False])
def test_however_a_run_ends_all_that_was_logged_is_recorded(
    directory, open_run, deferring, ending, status, in_epoch
):
    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt, SystemExit), open_run() as run:
        for _ in run.epochs(1) if in_epoch else [0]:
            for step in range(10):
                run.log(loss=torch.tensor(float(step)))
            ending()
    assert [e["metrics"]["loss"] for e in events(directory)] == [float(step) for step in range(10)]
    assert events(directory, "end")[0]["status"] == status
    if in_epoch:
        assert events(directory, "epoch")[0]["stats"]["loss"]["count"] == 10


def test_latest_has_what_was_just_logged(directory, open_run, deferring):
    with open_run() as run:
        for step in range(5):
            run.log(loss=torch.tensor(float(step)))
        assert run.latest == {"loss": 4.0}
    assert run.latest == {"loss": 4.0}


def test_a_checkpoint_has_the_metrics_of_its_own_step(directory, open_run, deferring):
    with open_run() as run:
        for loss in (3.0, 1.0, 2.0):
            run.log(loss=torch.tensor(loss))
            run.save(model=torch.nn.Linear(1, 1))
    assert [c["metrics"] for c in events(directory, "checkpoint")] == [
        {"loss": 3.0},
        {"loss": 1.0},
        {"loss": 2.0},
    ]
    assert "step000002" in (directory / "checkpoints" / "best.json").read_text()


def test_what_was_logged_before_a_save_is_recorded_before_it_returns(directory, open_run, deferring):
    with open_run() as run:
        for loss in (3.0, 1.0, 2.0):
            run.log(loss=torch.tensor(loss))
        run.save(model=torch.nn.Linear(1, 1))
        assert steps(directory) == [0, 1, 2]


def test_the_event_of_a_checkpoint_waits_for_no_device(directory, recorder):
    log_tensors(recorder, 3)
    recorder.checkpoint("checkpoints/step000001", {"step": 1, "epoch": None, "metrics": {"loss": 2.0}})
    (event,) = events(directory, "checkpoint")
    assert (event["step"], event["metrics"]) == (1, {"loss": 2.0})
    assert steps(directory) == [0]


def test_a_forked_worker_writes_nothing_of_what_waits_in_its_copy(directory, open_run, deferring):
    with open_run() as run:
        run.log(loss=torch.tensor(0.0))
        run.log(loss=torch.tensor(1.0))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run.latest  # noqa: B018
                run.log(loss=2.0)
            except RunError as error:
                code = 0 if "DataLoader worker" in str(error) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(steps(directory)) < 2
    assert steps(directory) == [0, 1]


def test_sigkill_loses_at_most_64_steps(directory, tmp_path):
    script = textwrap.dedent(
        f"""
        import daypoint, torch
        with daypoint.open_run({{"tracking": {{"enabled": False}}}}, run_dir={str(directory)!r}, quiet=True) as run:
            loss, step = torch.tensor(0.0), 0
            while True:
                loss.fill_(step)
                run.log(loss=loss)
                print(step, flush=True)
                step += 1
        """
    )
    environment = {**os.environ, "DAYPOINT_DEFER": "1"}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as trainer:
        while int(trainer.stdout.readline()) < 1000:
            pass
        trainer.kill()
        rest = trainer.stdout.read().split("\n")[:-1]  # the last line may be cut
    logged = 1 + (int(rest[-1]) if rest else 1000)
    found = [batch["metrics"]["loss"] for batch in events(directory)]
    assert found == [float(step) for step in range(len(found))]
    assert logged - STEPS <= len(found) <= logged + 1
