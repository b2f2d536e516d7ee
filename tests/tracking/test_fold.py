import math

import pytest
from written_runs import WrittenRun

from daypoint.tracking import fold
from daypoint.tracking.fold import Fold, events, read_chunk


class Remarks(list):
    def __call__(self, tag, subject, text):
        if (tag, subject) not in [(a, b) for a, b, _ in self]:
            self.append((tag, subject, text))


@pytest.fixture
def run(tmp_path):
    written = WrittenRun(tmp_path)
    yield written
    written.journal.close()


def points_of(run, remarks=None):
    folded = Fold(run.files.journal, Remarks() if remarks is None else remarks)
    return [point for event in events(run.files.journal) for point in folded.points(event)]


def test_every_batch_value_is_a_point_with_its_own_step_and_time(run):
    run.log(loss=0.5, lr=0.1)
    run.log(loss=0.25, lr=0.1)
    run.log_epoch(**{"val/accuracy": 0.75})
    assert points_of(run) == run.points


def test_points_are_plain_floats_and_ints(run):
    run.log(ok=True, count=3, loss=0.5)
    assert [type(part) for point in points_of(run) for part in point] == [str, float, int, int] * 3
    assert [value for _, value, _, _ in points_of(run)] == [1.0, 3.0, 0.5]


def test_the_statistics_of_an_epoch_are_points_of_their_own(run):
    run.log(loss=1.0)
    run.log(loss=3.0)
    run.epoch(loss=[1.0, 3.0])
    assert {(key, value, step) for key, value, _, step in points_of(run)[2:]} == {
        ("epoch/loss/mean", 2.0, 1),
        ("epoch/loss/variance", 1.0, 1),
        ("epoch/loss/min", 1.0, 1),
        ("epoch/loss/max", 3.0, 1),
    }


def test_values_that_were_not_finite_are_counted_where_there_were_any(run):
    run.log(loss=1.0)
    run.epoch(loss=[1.0, math.nan, math.inf])
    assert ("epoch/loss/nonfinite", 2.0) in [(key, value) for key, value, _, _ in points_of(run)]


def test_statistics_of_nothing_finite_are_left_out(run):
    run.log(loss=math.nan)
    run.epoch(loss=[math.nan])
    assert [key for key, _, _, _ in points_of(run)[1:]] == ["epoch/loss/nonfinite"]


@pytest.mark.parametrize(
    ("value", "said"),
    [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (10**400, "inf"), (-(10**400), "-inf")],
)
def test_what_a_store_cannot_hold_is_nan_and_remarked(run, value, said):
    run.log(loss=1.0)
    run.log(loss=value)
    run.log(loss=value)
    remarks = Remarks()
    values = [value for _, value, _, _ in points_of(run, remarks)]
    assert values[0] == 1.0
    assert all(map(math.isnan, values[1:]))
    assert remarks == [("daypoint.nonfinite", "loss", f"{said} first at step 1")]


def test_an_integer_beyond_a_float_is_rounded_and_remarked(run):
    run.log(count=2**53 + 1, exact=2**60)
    remarks = Remarks()
    assert [value for _, value, _, _ in points_of(run, remarks)] == [float(2**53), float(2**60)]
    assert remarks == [("daypoint.rounded", "count", "first at step 0")]


def test_names_are_those_of_mlflow(run):
    run.log(**{"acc@1": 0.5, "epoch/loss/mean": 1.0})
    assert [key for key, _, _, _ in points_of(run)] == ["acc:40:1", ":65:poch/loss/mean"]


def test_a_name_too_long_for_its_epoch_statistics_is_remarked(run):
    name = "x" * 245
    run.log(**{name: 1.0})
    run.epoch(**{name: [1.0]})
    remarks = Remarks()
    assert [key for key, _, _, _ in points_of(run, remarks)] == [name]
    assert remarks == [("daypoint.truncated", name, "name too long for its epoch statistics")]


def test_the_same_name_twice_at_one_step_is_two_points(run):
    run.log(loss=1.0)
    run.log_epoch(accuracy=0.5)
    run.log_epoch(accuracy=0.75)
    assert [value for key, value, _, _ in points_of(run) if key == "accuracy"] == [0.5, 0.75]


# ---------------------------------------------------------------- later attempts


def resumed(run):
    """Steps 0 to 9, killed; a second attempt from step 5 goes on to step 11."""
    for step in range(10):
        run.log(loss=float(step))
    run.die()
    run.resume(5)
    for step in range(5, 12):
        run.log(loss=100.0 + step, extra=1.0)
    return run


def test_steps_done_again_add_no_second_point(run):
    points = points_of(resumed(run))
    losses = [(step, value) for key, value, _, step in points if key == "loss"]
    assert losses == [*((step, float(step)) for step in range(10)), (10, 110.0), (11, 111.0)]


def test_what_only_the_later_attempt_logged_is_kept(run):
    points = points_of(resumed(run))
    assert [step for key, _, _, step in points if key == "extra"] == list(range(5, 12))


def test_a_resumption_is_remarked(run):
    remarks = Remarks()
    points_of(resumed(run), remarks)
    assert remarks == [("daypoint.resumed", "attempt 2", "from step 5")]


def test_a_fold_that_begins_later_gives_the_same_points(run, monkeypatch):
    monkeypatch.setattr(fold, "CHUNK_BYTES", 300)
    whole = points_of(resumed(run))
    offset, points = 0, []
    while True:  # a new fold for each chunk, as after a crash
        reading = read_chunk(run.files.journal, offset)
        if reading.end_bytes == offset:
            break
        folded = Fold(run.files.journal, Remarks(), offset)
        points += [point for event in reading.events for point in folded.points(event)]
        offset = reading.end_bytes
    assert points == whole


# ---------------------------------------------------------------- reading


def test_a_journal_is_read_in_chunks_without_losing_a_line(run, monkeypatch):
    for step in range(50):
        run.log(**{f"metric{'x' * step}": 1.0})
    whole = list(events(run.files.journal))
    for size in (1, 7, 100, 1000):
        monkeypatch.setattr(fold, "CHUNK_BYTES", size)
        assert list(events(run.files.journal)) == whole


def test_an_unfinished_line_is_left_for_later(run):
    run.log(loss=1.0)
    size = run.files.journal.stat().st_size
    with open(run.files.journal, "ab") as file:
        file.write(b'{"event":"bat')
    reading = read_chunk(run.files.journal, 0)
    assert (reading.end_bytes, reading.torn_bytes) == (size, 13)


def test_a_damaged_line_is_named_by_where_it_lies(run):
    run.log(loss=1.0)
    start = run.files.journal.stat().st_size
    run.log(loss=2.0)
    run.log(loss=3.0)
    content = bytearray(run.files.journal.read_bytes())
    content[start + 20] ^= 1
    run.files.journal.write_bytes(content)
    reading = read_chunk(run.files.journal, 0)
    assert [damage.offset_bytes for damage in reading.damages] == [start]
    assert [event["metrics"] for event in reading.events[1:]] == [{"loss": 1.0}, {"loss": 3.0}]


def test_no_journal_reads_as_nothing(tmp_path):
    assert read_chunk(tmp_path / "none", 0).events == []
