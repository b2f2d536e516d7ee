"""Journals as columns: the rows that count, and no more memory than the columns take."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from written_runs import WrittenRun

from daypoint.plots import points
from daypoint.plots.points import Points
from daypoint.record.journal import line
from daypoint.record.replay import valid_events

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["batch", "epoch_metrics"]), st.integers(0, 6), st.integers(0, 1)),
        st.tuples(st.just("start"), st.integers(0, 6), st.integers(2, 3)),
    ),
    max_size=12,
)


@given(EVENTS)
def test_the_rows_are_those_that_count_in_a_replay(drawn):
    events = []
    for place, (kind, step, number) in enumerate(drawn):
        if kind == "start":
            events.append({"event": "start", "attempt": number, "step": step})
        else:
            events.append({"event": kind, "step": step, "epoch": 0, "time": place, "metrics": {"x": 0.5}})
    expected = [(e["step"], e["time"]) for e in valid_events(events) if e["event"] != "start"]
    found = Points(events)
    steps, times = (np.array(of)[found.counts()] for of in (found.steps, found.times))
    assert list(zip(steps, times, strict=True)) == expected


def test_memory_for_many_batches_is_that_of_the_columns(tmp_path):
    count = 20_000
    run = WrittenRun(tmp_path)
    run.die()
    with open(run.files.journal, "ab") as file:
        for step in range(count):
            metrics = {"loss": step * 0.5, "lr": 0.1, "grad_norm": 2.0}
            file.write(line({"event": "batch", "time": step, "step": step, "epoch": 0, "metrics": metrics}))
    tracemalloc.start()
    found = Points(points.events(run.files.journal))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20 + count * 150  # nine columns of eight bytes, and the room they grow into
    assert np.array_equal(found.values["loss"][1], np.arange(count) * 0.5)
