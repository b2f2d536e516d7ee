"""The spool: what `log` acknowledged is in the journal in the end, once, in order, whatever happens in between."""

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from projects import clean_environment

import daypoint
from daypoint.base.day import RunFiles
from daypoint.base.errors import JournalError, RunError, ScalarError
from daypoint.record import catalog, ending, identity, journal, spool
from daypoint.record.journal import Journal
from daypoint.run.recorder import Recorder


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def open_run(directory):
    return lambda **tracking: daypoint.open_run(
        {"tracking": {"enabled": False, **tracking}}, run_dir=directory, quiet=True
    )


@pytest.fixture
def recorder(directory, monkeypatch):
    """A recorder that is not part of a run; its spool is drained by number only."""
    monkeypatch.setattr(spool, "SECONDS", 1e6)
    directory.mkdir()
    files = RunFiles(directory, "20260328")
    with contextlib.closing(Journal.create(files.journal)) as opened:
        yield Recorder(opened, files)


def events(directory, kind="batch"):
    return [e for e in journal.read(directory / "journal.jsonl").events if e["event"] == kind]


def kept(directory):
    return [(e["step"], e["metrics"]) for e in events(directory)]


def after_death(directory, to):
    """The run as it would be found if its process were killed now."""
    shutil.copytree(directory, to)
    spool.recover(to / "journal.spool", to / "journal.jsonl")
    return to


def log(recorder, count, **more):
    for _ in range(count):
        recorder.log({"loss": recorder.step / 7, "lr": 0.1, **more})


# ---------------------------------------------------------------- what is recorded


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, -1 / 3])
@pytest.mark.parametrize(
    "kind", [float, torch.tensor, np.float64, lambda x: torch.tensor(x, dtype=torch.float64)]
)
def test_every_finite_value_comes_back_exactly(recorder, directory, value, kind):
    for _ in range(5):
        recorder.log({"x": kind(value)})
    recorder.flush()
    expected = daypoint.to_py(kind(value))
    assert [repr(m["x"]) for _, m in kept(directory)] == [repr(expected)] * 5


def test_the_lines_are_those_of_a_journal_without_a_spool(directory, recorder, tmp_path):
    log(recorder, 20)
    recorder.flush()
    for line, event in zip(
        (directory / "journal.jsonl").read_bytes().splitlines(), events(directory), strict=True
    ):
        assert line + b"\n" == journal.line(event)


MIXED = [
    ({"a": 1.0, "b": 2.0}, 6),
    ({"b": 3.0, "a": 4.0}, 5),  # the same names in another order
    ({"a": 7, "b": 2.0}, 2),
    ({"a": True, "b": float("nan")}, 2),
    ({"a": float("inf"), "b": 1.0}, 3),
    ({"a": torch.tensor(1.5), "b": torch.tensor(2)}, 4),
    ({"a": torch.tensor(1.5), "b": torch.tensor(2.5, dtype=torch.bfloat16)}, 4),
    ({"c": np.float32(0.1)}, 4),
    ({"a": 2.0**70, "b": 2**70}, 2),
    ({f"m{i}": i / 3 for i in range(40)}, 300),
    ({f"m{i}": i / 3 for i in range(900)}, 3),
    ({"x" * 200 + str(i): 0.5 for i in range(40)}, 3),
]


def test_quick_and_slow_batches_come_in_the_order_of_their_calls(recorder, directory):
    rng = random.Random(3)
    expected = []
    for epoch in range(4):
        recorder.begin_epoch(epoch)
        for _ in range(12):
            metrics, count = rng.choice(MIXED)
            for _ in range(count):
                expected.append(
                    (recorder.step, epoch, repr({k: daypoint.to_py(v) for k, v in metrics.items()}))
                )
                recorder.log(metrics)
            if rng.random() < 0.2:
                recorder.log_epoch({"val": 1.0})
        assert recorder.end_epoch()["steps"] == sum(of == epoch for _, of, _ in expected)
    assert [(e["step"], e["epoch"], repr(e["metrics"])) for e in events(directory)] == expected


def test_the_statistics_of_an_epoch_have_every_batch_of_it_and_no_other(recorder):
    from daypoint.base.stats import RunningStats

    log(recorder, 5)
    recorder.begin_epoch(0)
    log(recorder, 1000)
    entry = recorder.end_epoch()
    expected = RunningStats()
    for step in range(5, 1005):
        expected.update(step / 7)
    assert entry["stats"]["loss"] == expected.to_dict()


def test_a_step_that_was_given_is_kept(recorder, directory):
    for step in (0, 5, 6, 3, 2**53 - 1, 2**53 + 1, 4, torch.tensor(9)):
        recorder.log({"loss": 1.0}, step)
    recorder.flush()
    assert [step for step, _ in kept(directory)] == [0, 5, 6, 3, 2**53 - 1, 2**53 + 1, 4, 9]
    assert recorder.step == 10


def test_latest_has_what_was_just_logged(open_run):
    with open_run() as run:
        for step in range(5):
            run.log(loss=step / 2)
            assert run._recorder.latest == {"loss": step / 2}
            assert run._recorder.step == step + 1
    assert run.latest == {"loss": 2.0}


REFUSED = {
    "shape (1,)": lambda: torch.ones(1),
    "shape (1, 1)": lambda: torch.ones(1, 1),
    "shape (8,)": lambda: torch.ones(8),
    "empty": lambda: torch.ones(0),
    "complex": lambda: torch.tensor(1j),
    "meta": lambda: torch.tensor(1.0, device="meta"),
    "sparse": lambda: torch.tensor(1.0).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.tensor(1.0), 0.1, 0, torch.quint8),
    "masked": lambda: np.ma.masked_array(1.0, True),
    "none": lambda: None,
    "text": lambda: "0.5",
    "list": lambda: [0.5],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_the_door_is_as_strict_for_what_is_spooled(recorder, directory, kind):
    log(recorder, 5, acc=torch.tensor(0.5))
    assert recorder._spool.names is not None
    with pytest.raises(ScalarError, match=r"^step 5: acc: expected a scalar"):
        recorder.log({"loss": 1.0, "lr": 0.1, "acc": REFUSED[kind]()})
    assert recorder.step == 5
    log(recorder, 5, acc=torch.tensor(0.5))
    recorder.flush()
    assert [step for step, _ in kept(directory)] == list(range(10))


def test_a_fake_tensor_and_one_inside_a_transform_are_refused_in_the_spool(recorder):
    from torch._subclasses.fake_tensor import FakeTensorMode

    log(recorder, 5)

    def inside(x):
        recorder.log({"loss": x, "lr": 0.1})
        return x

    with pytest.raises(ScalarError, match=r"torch\.func"):
        torch.func.vmap(inside)(torch.ones(3))
    log(recorder, 3)
    with pytest.raises(ScalarError, match=r"torch\.func"):
        torch.func.grad(inside)(torch.tensor(1.0))
    log(recorder, 3)
    with FakeTensorMode() as mode, pytest.raises(ScalarError, match="holds no value"):
        inside(mode.from_tensor(torch.tensor(1.0)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_stay_whole_numbers(recorder, directory, dtype):
    for value in (torch.tensor(0.0), torch.tensor(0.0), torch.tensor(0.0), torch.tensor(1, dtype=dtype)):
        recorder.log({"x": value})
    assert type(kept(directory)[-1][1]["x"]) is (bool if dtype is torch.bool else int)


def test_threads_that_log_at_once_do_not_mix_their_values(recorder, directory):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def train(number):
        for i in range(1500):
            recorder.log({"a": number + i / 2, "b": number + i / 2})
            if i % 400 == 0:
                recorder.flush()

    try:
        threads = [threading.Thread(target=train, args=(number * 10_000,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    recorder.flush()
    found = kept(directory)
    assert sorted(m["a"] for _, m in found) == sorted(
        n * 10_000 + i / 2 for n in range(3) for i in range(1500)
    )
    assert all(m["a"] == m["b"] for _, m in found)
    assert [step for step, _ in found] == list(range(4500))


def test_nan_stops_the_run_at_its_own_call(open_run, directory):
    def train():
        with open_run(on_nonfinite="stop") as run:
            for loss in [1.0] * 7 + [float("nan")] * 2:
                run.log(loss=torch.tensor(loss))

    with pytest.raises(RunError, match="loss: nan at step 7"):
        train()
    assert [step for step, _ in kept(directory)] == list(range(8))


# ---------------------------------------------------------------- when it is written


def test_256_rows_are_the_most_that_wait(recorder, directory):
    for step in range(1, 1000):
        log(recorder, 1)
        assert step - spool.ROWS <= len(events(directory)) <= step
    assert len(events(directory)) < 999


def test_half_a_second_and_a_step_is_the_longest_wait(recorder, directory, monkeypatch):
    monkeypatch.setattr(spool, "SECONDS", 0.0)
    log(recorder, 10)
    assert len(events(directory)) == 10


def test_a_clock_set_back_drains(recorder, directory, monkeypatch):
    log(recorder, 10)
    real = spool.time.time_ns
    monkeypatch.setattr(spool.time, "time_ns", lambda: real() - 10**13)
    log(recorder, 1)
    assert len(events(directory)) == 11


@pytest.mark.parametrize(
    "event",
    [
        lambda r: r.begin_epoch(0),
        lambda r: r.log_epoch({"accuracy": 0.5}),
        lambda r: r.checkpoint("checkpoints/step000004", {"step": 4, "epoch": 0, "metrics": {}}),
        lambda r: r.flush(),
        lambda r: r.log({"another": 1.0}),
        lambda r: r.log({"loss": 1, "lr": 2}),
        lambda r: r.end({"event": "end", "time": 0}),
    ],
    ids=["begin_epoch", "log_epoch", "checkpoint", "flush", "other names", "integers", "end"],
)
def test_all_is_in_the_journal_before(recorder, directory, event):
    log(recorder, 10)
    assert len(events(directory)) < 10
    event(recorder)
    found = journal.read(directory / "journal.jsonl").events
    assert [(e["event"], e["step"]) for e in found[:10]] == [("batch", step) for step in range(10)]


# ---------------------------------------------------------------- after the end


@pytest.mark.parametrize("how", [lambda: None, lambda: 1 / 0, lambda: signal.raise_signal(signal.SIGINT)])
def test_nothing_is_left_of_it_after_an_orderly_end(open_run, directory, how):
    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt), open_run() as run:
        for step in range(10):
            run.log(loss=step / 2)
        assert (directory / "journal.spool").exists()
        how()
    assert not (directory / "journal.spool").exists()
    assert kept(directory) == [(step, {"loss": step / 2}) for step in range(10)]
    assert journal.read(directory / "journal.jsonl").events[-1]["event"] == "end"


def test_a_forked_child_neither_writes_to_it_nor_ends_it(open_run, directory):
    with open_run() as run:
        for _ in range(5):
            run.log(loss=1.0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run.log(loss=2.0)
            except RunError:
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        run.log(loss=3.0)
    assert [m["loss"] for _, m in kept(directory)] == [1.0] * 5 + [3.0]


def test_no_space_for_it_is_an_error_before_the_first_step(open_run, directory):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (spool.SIZE_BYTES // 2, limits[1]))
    try:
        with pytest.raises(RunError, match="cannot write the run's first files"), open_run():
            raise AssertionError("it was opened")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not (directory / "journal.spool").exists()


def test_on_a_file_system_without_shared_mappings_every_batch_is_written_at_once(
    open_run, directory, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(spool.mmap, "mmap", refuse)
    with open_run() as run:
        for step in range(10):
            run.log(loss=1.0)
            assert len(events(directory)) == step + 1
        assert not (directory / "journal.spool").exists()


# ---------------------------------------------------------------- recovery


def test_recovery_adds_what_is_missing_and_done_again_nothing(recorder, directory, tmp_path):
    log(recorder, 300)
    for number in range(3):
        died = after_death(directory, tmp_path / str(number))
        assert kept(died) == [(step, {"loss": step / 7, "lr": 0.1}) for step in range(300 + number)]
        content = (died / "journal.jsonl").read_bytes()
        shutil.copy(directory / "journal.spool", died)  # killed before it was removed
        spool.recover(died / "journal.spool", died / "journal.jsonl")
        assert (died / "journal.jsonl").read_bytes() == content
        assert not (died / "journal.spool").exists()
        log(recorder, 1)


def test_every_beginning_of_what_was_being_drained_is_completed(recorder, directory, tmp_path):
    log(recorder, 12)
    died = after_death(directory, tmp_path / "died")
    whole = (died / "journal.jsonl").read_bytes()
    start = (directory / "journal.jsonl").stat().st_size
    for length in range(start, len(whole) + 1):
        shutil.copy(directory / "journal.spool", died)
        (died / "journal.jsonl").write_bytes(whole[:length])
        spool.recover(died / "journal.spool", died / "journal.jsonl")
        assert (died / "journal.jsonl").read_bytes() == whole


def test_a_row_without_its_commit_word_was_not_acknowledged(recorder, directory, tmp_path):
    log(recorder, 10)
    words = recorder._spool._words
    first = spool._FIRST + 7 * recorder._spool._width  # of step 9: the first two were written at once
    words[first] = 0.0
    assert len(kept(after_death(directory, tmp_path / "died"))) == 9


def test_a_kill_between_any_two_stores_leaves_the_batch_or_nothing(recorder, directory, tmp_path):
    """The stores of two drains and of the rows between, one by one."""
    log(recorder, 3)

    class Watched:
        def __init__(self, words):
            self.words = words

        def __getitem__(self, key):
            return self.words[key]

        def __setitem__(self, key, value):
            check()
            self.words[key] = value
            check()

    seen = []

    def check():
        died = after_death(directory, tmp_path / f"died {len(seen)}")
        seen.append(len(kept(died)))
        assert kept(died) == [(step, {"loss": step / 7, "lr": 0.1}) for step in range(seen[-1])]
        assert recorder.step <= seen[-1] <= recorder.step + 1
        shutil.rmtree(died)

    words = recorder._spool._words
    recorder._spool._words = Watched(words)
    log(recorder, 4)
    recorder.flush()
    log(recorder, 4)
    recorder._spool._words = words
    assert sorted(seen) == seen
    assert len(seen) > 60


@pytest.mark.parametrize("cut", range(0, 140, 7))
def test_a_torn_header_leaves_the_one_before_it_in_force(recorder, directory, tmp_path, cut):
    log(recorder, 8)
    recorder._drain()
    died = tmp_path / "died"
    before = (directory / "journal.spool").read_bytes()
    recorder._spool.begin(("loss", "lr"), None)
    after = (directory / "journal.spool").read_bytes()
    torn = bytearray(before)
    place = (recorder._spool._headers - 1) % 2 * spool.HEADER_BYTES
    torn[place : place + cut] = after[place : place + cut]
    shutil.copytree(directory, died)
    (died / "journal.spool").write_bytes(torn)
    spool.recover(died / "journal.spool", died / "journal.jsonl")
    assert [step for step, _ in kept(died)] == list(range(8))


def test_a_value_that_looks_like_a_commit_word_is_none(recorder, directory, tmp_path):
    """Rows of other names lie elsewhere: what was a value would now be a commit word."""
    for width in (1, 4, 2, 6, 1, 3):
        for _ in range(40):
            recorder.log({f"m{i}": float(recorder._spool._number + j) for j, i in enumerate(range(width))})
            died = after_death(directory, tmp_path / "died")
            assert [step for step, _ in kept(died)] == list(range(recorder.step))
            shutil.rmtree(died)


def test_a_dead_run_is_whole_for_whoever_reads_it_and_for_who_resumes_it(directory):
    script = textwrap.dedent(
        f"""
        import os, daypoint
        opening = daypoint.open_run({{"tracking": {{"enabled": False}}}}, run_dir={str(directory)!r}, quiet=True)
        run = opening.__enter__()
        for step in range(100):
            run.log(loss=step / 2)
        os.kill(os.getpid(), 9)
        """
    )
    subprocess.run([sys.executable, "-c", script], env=clean_environment(), check=False)
    expected = [(step, {"loss": step / 2}) for step in range(100)]
    assert kept(directory) != expected
    files = RunFiles(directory, identity.read_run(directory)["day"])
    copies = [shutil.copytree(directory, directory.with_name(name)) for name in ("read", "ended", "resumed")]
    assert catalog.read(copies[0], directory.parent).status == "KILLED"
    assert ending.ending_of(RunFiles(copies[1], files.day)).status == "KILLED"
    with daypoint.open_run({"tracking": {"enabled": False}}, resume=copies[2], quiet=True) as run:
        run.log(loss=9.0)
    for copy in copies:
        assert kept(copy)[:100] == expected
        assert not (copy / "journal.spool").exists()
    assert len(kept(copies[2])) == 101


def test_nobody_recovers_a_live_run(open_run, directory):
    with open_run() as run:
        for _ in range(10):
            run.log(loss=1.0)
        before = (directory / "journal.jsonl").read_bytes()
        catalog.read(directory, directory.parent)
        files = RunFiles(directory, run.day)
        assert ending.ending_of(files) is None
        ending._recover(files, identity.read_run(directory), dead_pid=os.getpid() + 1)
        spool.recover(files.spool, files.journal, pid=os.getpid() + 1)
        assert (directory / "journal.jsonl").read_bytes() == before
        assert files.spool.exists()


# ---------------------------------------------------------------- a full disk


def test_what_a_full_disk_refused_is_written_later_with_no_damage(recorder, directory):
    log(recorder, 100)
    size = (directory / "journal.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for room in (0, 10, 1000, 1001):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))
            with pytest.raises(JournalError, match="free some space"):
                recorder.flush()
            assert (directory / "journal.jsonl").stat().st_size == size + room
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    log(recorder, 5)
    recorder.flush()
    reading = journal.read(directory / "journal.jsonl")
    assert [e["step"] for e in reading.events] == list(range(105))
    assert reading.damages == []


def test_a_call_that_finds_the_disk_full_is_not_recorded_and_all_before_it_are(recorder, directory, tmp_path):
    log(recorder, 2)
    size = (directory / "journal.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(size + 1000, spool.SIZE_BYTES), limits[1]))
    try:
        with pytest.raises(JournalError, match="batches wait in"):
            log(recorder, 10_000)
        acknowledged = recorder.step
        for _ in range(3):
            with pytest.raises(JournalError):
                log(recorder, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert recorder.step == acknowledged
    assert [step for step, _ in kept(after_death(directory, tmp_path / "died"))] == list(range(acknowledged))


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_after_sigkill_on_a_full_disk_the_space_of_the_spool_itself_is_enough(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=True)
    try:
        script = textwrap.dedent(
            f"""
            import os, daypoint
            with daypoint.open_run({{"tracking": {{"enabled": False}}}}, run_dir={str(tmp_path / "run")!r}, quiet=True) as run:
                for step in range(200):
                    run.log(loss=step / 7, lr=0.1)
                with open({str(tmp_path / "full")!r}, "wb") as file:
                    try:
                        while True:
                            file.write(bytes(4096))
                            file.flush()
                    except OSError:
                        print("full", flush=True)
                        os.kill(os.getpid(), 9)
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
        )
        assert done.stdout == "full\n"
        assert len(kept(tmp_path / "run")) < 200
        run = catalog.read(tmp_path / "run", tmp_path)
        assert [step for step, _ in kept(run.directory)] == list(range(200))
        assert not run.files.spool.exists()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# ---------------------------------------------------------------- killed for real

VICTIM = """
    import os, sys
    import torch, daypoint
    def child(directory):
        cfg = {"tracking": {"enabled": False}}
        with daypoint.open_run(cfg, run_dir=directory, quiet=True) as run:
            for epoch in run.epochs(10**6):
                for i in range(700):
                    step = run.step
                    if i == 300:
                        run.log(loss=step, lr=1)
                    elif i % 50 == 49:
                        run.log(loss=step / 7)
                    else:
                        run.log(loss=torch.tensor(step / 7, dtype=torch.float64), lr=0.1)
                    os.write(1, b"%d\\n" % step)
                run.log_epoch(val=0.5)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(line.strip())
        os.write(2, b"%d\\n" % pid)
        os.waitpid(pid, 0)
        os.write(1, b"end\\n")
"""


@pytest.mark.slow
def test_two_hundred_kills_lose_no_acknowledged_batch(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(VICTIM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    rng = random.Random(5)
    recovered = 0
    for trial in range(250):
        directory = tmp_path / str(trial)
        parent.stdin.write(f"{directory}\n")
        parent.stdin.flush()
        pid = int(parent.stderr.readline())
        acknowledged = [
            parent.stdout.readline() for _ in range(rng.choice([5, 40, 260, 310, 900]) + rng.randrange(9))
        ]
        os.kill(pid, signal.SIGKILL)
        while (line := parent.stdout.readline()) != "end\n":
            acknowledged.append(line)
        steps = [int(line) for line in acknowledged if line.endswith("\n")]
        recovered += (directory / "journal.spool").exists()
        run = catalog.read(directory, tmp_path)
        reading = journal.read(run.files.journal)
        assert reading.damages == []
        assert reading.torn_bytes == 0
        found = [(e["step"], e["metrics"]["loss"]) for e in reading.events if e["event"] == "batch"]
        assert [step for step, _ in found] == list(range(len(found)))
        assert len(steps) <= len(found) <= len(steps) + 1
        assert steps == list(range(len(steps)))
        assert all(loss == step / 7 or loss == step for step, loss in found)
        assert run.status == "KILLED"
        assert not run.files.spool.exists()
        shutil.rmtree(directory)
    parent.stdin.close()
    parent.wait()
    parent.stdout.close()
    parent.stderr.close()
    assert recovered == 250
