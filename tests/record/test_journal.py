"""The journal: whole lines or none, damage named, nothing guessed."""

import fcntl
import math
import os
import random
import subprocess
import sys
import textwrap
import threading

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypoint.base.errors import JournalError, RunError
from daypoint.record import journal
from daypoint.record.journal import Journal


def batch(step, **metrics):
    return {"event": "batch", "time": 1774707302123 + step, "step": step, "epoch": 0, "metrics": metrics}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


@pytest.fixture
def filled(path):
    """A journal of 20 batches: its path and its events."""
    events = [batch(i, loss=1 / (i + 1), lr=0.1) for i in range(20)]
    log = Journal.create(path)
    for event in events:
        log.append(event)
    log.close()
    return path, events


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False)),
    )
)
@settings(max_examples=50)
def test_every_value_comes_back_exactly(metrics):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.jsonl"
        log = Journal.create(path)
        log.append(batch(0) | {"metrics": metrics})
        log.close()
        (event,) = journal.read(path).events
        assert event["metrics"] == metrics
        assert [type(v) for v in event["metrics"].values()] == [type(v) for v in metrics.values()]


def test_nan_and_infinities_are_strict_json_and_come_back_as_floats(path):
    log = Journal.create(path)
    log.append(batch(3, a=math.nan, b=math.inf, c=-math.inf, d=-0.0, e=2**63))
    log.close()
    line = orjson.loads(path.read_bytes())
    assert line["metrics"] == {
        "a": "NaN",
        "b": "Infinity",
        "c": "-Infinity",
        "d": 0.0,
        "e": "9223372036854775808",
    }
    metrics = journal.read(path).events[0]["metrics"]
    assert math.isnan(metrics["a"])
    assert (metrics["b"], metrics["c"], metrics["e"]) == (math.inf, -math.inf, 2**63)
    assert math.copysign(1, metrics["d"]) == -1


def test_each_line_carries_the_crc_of_the_bytes_before_it(filled):
    import zlib

    path, _ = filled
    for line in path.read_bytes().splitlines():
        body, _, crc = line.rpartition(b',"crc":"')
        assert int(crc.removesuffix(b'"}'), 16) == zlib.crc32(body)


def test_creating_a_journal_twice_is_refused(filled):
    with pytest.raises(FileExistsError):
        Journal.create(filled[0])


def test_every_prefix_gives_the_whole_records_before_it(filled):
    path, events = filled
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content)):
        path.write_bytes(content[:length])
        reading = journal.read(path)
        whole = sum(end <= length for end in ends)
        assert reading.events == events[:whole]
        assert reading.damages == []
        assert reading.torn_bytes == length - reading.end_bytes


def test_a_flipped_bit_costs_its_own_record_only_and_is_named(filled):
    path, events = filled
    content = path.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        position, bit = rng.randrange(len(content) - 1), rng.randrange(8)
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        reading = journal.read(path)
        hit = content.count(b"\n", 0, position)
        lost_newline = content[position] == ord("\n")
        missing = {hit, hit + 1} if lost_newline else {hit}
        assert reading.events == [event for i, event in enumerate(events) if i not in missing]
        assert reading.damages
        start = reading.damages[0].offset_bytes
        assert start <= position < sum(d.length_bytes + 1 for d in reading.damages) + start


def test_a_zeroed_tail_is_never_taken_for_records(filled):
    path, events = filled
    content = path.read_bytes()
    cut = content.index(b"\n", len(content) // 2) + 20
    path.write_bytes(content[:cut] + bytes(len(content) - cut))
    reading = journal.read(path)
    assert reading.events == events[: content[:cut].count(b"\n")]
    assert reading.torn_bytes > 0


def test_going_on_after_a_torn_line_keeps_it_apart(filled):
    path, events = filled
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    log = Journal.reopen(path)
    log.append(batch(99, loss=1.0))
    log.close()
    reading = journal.read(path)
    assert reading.events == [*events[:-1], batch(99, loss=1.0)]
    (damage,) = reading.damages
    assert damage.offset_bytes == content.rstrip(b"\n").rindex(b"\n") + 1
    assert "no checksum" in damage.reason


def test_reading_on_from_an_offset_gives_what_came_after(filled):
    path, events = filled
    first = journal.read(path)
    log = Journal.reopen(path)
    log.append(batch(20, loss=0.0))
    log.close()
    assert journal.read(path, first.end_bytes).events == [batch(20, loss=0.0)]
    assert first.events == events


def test_what_json_cannot_hold_is_an_error_and_leaves_no_trace(path):
    log = Journal.create(path)
    with pytest.raises(JournalError, match="not recorded"):
        log.append({"event": "batch", "time": 0, "step": 0, "metrics": {"\ud800": 1.0}})
    log.append(batch(0, loss=1.0))
    log.close()
    assert journal.read(path).events == [batch(0, loss=1.0)]


def test_a_full_disk_is_an_error_within_one_call_and_what_was_acknowledged_stays(path):
    script = textwrap.dedent(
        f"""
        import resource, signal, sys
        from pathlib import Path
        from daypoint.record.journal import Journal
        from daypoint.base.errors import JournalError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = Journal.create(Path({str(path)!r}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        acknowledged = 0
        try:
            for step in range(100):
                log.append({{"event": "batch", "time": 0, "step": step, "metrics": {{"loss": 0.5}}}})
                acknowledged += 1
        except JournalError as error:
            print(acknowledged, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    acknowledged, _, message = done.stdout.partition(" ")
    assert [e["step"] for e in journal.read(path).events] == list(range(int(acknowledged)))
    assert int(acknowledged) > 5
    assert "bytes" in message
    assert "free some space" in message


def test_a_record_after_a_short_write_stands_on_a_line_of_its_own(path):
    script = textwrap.dedent(
        f"""
        import resource, signal
        from pathlib import Path
        from daypoint.record.journal import Journal
        from daypoint.base.errors import JournalError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = Journal.create(Path({str(path)!r}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, resource.RLIM_INFINITY))
        for step in range(5):
            try:
                log.append({{"event": "batch", "time": 0, "step": step, "metrics": {{"loss": 0.5}}}})
            except JournalError:
                break
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.append({{"event": "batch", "time": 0, "step": 77, "metrics": {{"loss": 0.5}}}})
        print(step)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    reading = journal.read(path)
    assert [e["step"] for e in reading.events] == [*range(int(done.stdout)), 77]
    assert len(reading.damages) == 1


def test_one_process_writes_and_the_lock_dies_with_it(path):
    script = (
        "import sys; from pathlib import Path; from daypoint.record.journal import Journal\n"
        f"log = Journal.create(Path({str(path)!r})); print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"open\n"
    assert journal.is_being_written(path)
    with pytest.raises(RunError, match="another live process"):
        Journal.reopen(path)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert not journal.is_being_written(path)


def test_two_hundred_kills_lose_no_acknowledged_record(tmp_path):
    """FAULTS 1 for the journal alone: one child at a time, killed at a random moment while it appends."""
    script = (
        "import os, sys; from pathlib import Path; from daypoint.record.journal import Journal\n"
        "def child(path):\n"
        "    log = Journal.create(Path(path))\n"
        "    step = 0\n"
        "    while True:\n"
        "        log.append({'event': 'batch', 'time': 0, 'step': step, 'metrics': {'loss': 0.5}})\n"
        "        os.write(1, b'%d\\n' % step)\n"
        "        step += 1\n"
        "for line in sys.stdin:\n"
        "    pid = os.fork()\n"
        "    if pid == 0: child(line.strip())\n"
        "    os.write(2, b'%d\\n' % pid); os.waitpid(pid, 0)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    rng = random.Random(1)
    for i in range(200):
        path = tmp_path / f"{i}.jsonl"
        parent.stdin.write(f"{path}\n".encode())
        parent.stdin.flush()
        pid = int(parent.stderr.readline())
        for _ in range(rng.randrange(1, 40)):
            acknowledged = int(parent.stdout.readline())
        os.kill(pid, 9)
        # What the pipe still holds was acknowledged too; the next child starts at 0 again.
        reading = journal.read(path)
        steps = [event["step"] for event in reading.events]
        assert steps == list(range(len(steps)))
        assert len(steps) > acknowledged
        assert reading.damages == []
        parent.stdout.flush()
        os.set_blocking(parent.stdout.fileno(), False)
        while parent.stdout.read(65536):
            pass
        os.set_blocking(parent.stdout.fileno(), True)
    parent.stdin.close()
    parent.wait()
    parent.stdout.close()
    parent.stderr.close()


def test_events_come_one_after_the_other_without_the_damaged_ones(filled):
    path, events = filled
    assert list(journal.events(path)) == events
    content = path.read_bytes().split(b"\n")
    content[3] = content[3].replace(b"batch", b"bitch")
    path.write_bytes(b"\n".join(content)[:-10])
    assert list(journal.events(path)) == events[:3] + events[4:-1]


def test_a_line_of_another_process_is_not_written_over(path):
    log = Journal.create(path)
    log.append(batch(0, loss=1.0))
    with open(path, "ab") as other:  # a courier that completes the journal of a trainer it believes dead
        other.write(journal.line(batch(1, loss=2.0)))
    log.append(batch(2, loss=3.0))
    log.close()
    reading = journal.read(path)
    assert [event["step"] for event in reading.events] == [0, 1, 2]
    assert reading.damages == []


def test_a_child_that_outlives_a_killed_writer_does_not_keep_the_lock(path):
    script = (
        "import os, sys, time; from pathlib import Path; from daypoint.record.journal import Journal\n"
        f"log = Journal.create(Path({str(path)!r}))\n"
        "pid = os.fork()\n"
        "if pid == 0: print('child', flush=True); sys.stdin.read(); os._exit(0)\n"
        "time.sleep(60)"
    )
    writer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"child\n"
    assert journal.is_being_written(path)
    writer.kill()
    writer.wait()
    assert not journal.is_being_written(path)
    Journal.reopen(path).close()
    writer.stdin.close()  # lets the child go
    writer.stdout.close()


def test_a_journal_without_a_line_can_be_gone_on_with(path):
    Journal.create(path).close()
    log = Journal.reopen(path)
    log.append(batch(0, loss=1.0))
    log.close()
    assert journal.read(path).events == [batch(0, loss=1.0)]


def test_one_who_only_looks_does_not_stop_a_writer(path):
    Journal.create(path).close()
    with open(path, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        later = threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN))
        later.start()
        Journal.reopen(path).close()
        later.join()


def test_damage_is_named_by_its_place_in_the_file_wherever_reading_began(filled):
    path, _ = filled
    content = path.read_bytes()
    place = content.index(b'{"event"', len(content) // 2)
    path.write_bytes(content[:place] + b"#" + content[place + 1 :])
    (whole,) = journal.read(path).damages
    (rest,) = journal.read(path, content.index(b"\n") + 1).damages
    assert whole == rest
    assert whole.offset_bytes == place


def test_an_empty_line_is_no_damage(filled):
    path, events = filled
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n\n"))
    assert journal.read(path).events == events
    assert journal.read(path).damages == []
