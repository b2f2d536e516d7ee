"""The ring, on CPU tensors, where a copy is done when it is asked for; on CUDA too where there is one."""

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daypoint.base.errors import RunError, ScalarError
from daypoint.scalars import convert, ring
from daypoint.scalars.ring import SLOTS, STEPS, Chunk, Ring

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", *(["cuda"] if CUDA else [])]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS += [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
INTEGERS = [
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


class Late(Chunk):
    """A device that takes its time: nothing arrives before `arrives` is true."""

    arrives = False

    def send(self):
        if self.arrives:
            super().send()

    def has_arrived(self):
        return self.arrives and super().has_arrived()


class Lost(Chunk):
    """A device that fails when something is brought over from it."""

    def send(self):
        raise RuntimeError("CUDA error: device-side assert triggered")


def through(*values, ring=None):
    """What comes out of a ring for one entry with these values."""
    ring = ring or Ring()
    ring.add(0, 0, {str(i): ring.put(value, "x") for i, value in enumerate(values)})
    (entry,) = ring.take(everything=True)
    return list(entry.values.values())


def fill(ring, steps, first=0):
    for step in range(first, first + steps):
        ring.add(step, step, {"loss": ring.put(torch.tensor(float(step)), "loss")})


def steps_of(entries):
    return [entry.step for entry in entries]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *FLOATS], ids=str)
@settings(max_examples=30, deadline=None)
@given(raw=st.binary(min_size=8, max_size=8))
def test_a_value_of_any_dtype_arrives_just_as_to_py_gives_it(dtype, device, raw):
    value = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    value = (value > 127 if dtype is torch.bool else value.view(dtype))[0].to(device)
    expected = convert.to_py(value)
    (found,) = through(value)
    assert type(found) is type(expected)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_side_by_side_do_not_disturb_each_other(device):
    values = [torch.ones((), dtype=dtype) for dtype in (torch.bool, *INTEGERS, *FLOATS)]
    assert through(*(value.to(device) for value in values)) == [value.item() for value in values]


@pytest.mark.parametrize("device", DEVICES)
def test_a_later_change_in_place_does_not_reach_what_was_put(device):
    ring, value = Ring(), torch.tensor(1.0, device=device)
    held = ring.put(value, "x")
    value.fill_(2.0)
    ring.add(0, 0, {"x": held})
    (entry,) = ring.take(everything=True)
    assert entry.values == {"x": 1.0}


def test_a_value_with_a_graph_is_put_and_the_graph_stays_whole():
    weight = torch.tensor(3.0, requires_grad=True)
    loss = weight**2
    assert through(loss) == [9.0]
    loss.backward()
    assert weight.grad == 6.0


def test_values_from_inside_and_outside_of_inference_mode_share_the_memory():
    ring = Ring()
    with torch.inference_mode():
        assert through(torch.tensor(1.0), ring=ring) == [1.0]
    assert through(torch.tensor(2.0, requires_grad=True), ring=ring) == [2.0]
    with torch.inference_mode():
        assert through(torch.tensor(3, dtype=torch.int8), ring=ring) == [3]


def test_a_parameter_can_be_held_and_another_subclass_cannot():
    class Odd(torch.Tensor):
        pass

    assert Ring.can_hold(torch.nn.Parameter(torch.tensor(1.0)))
    assert not Ring.can_hold(torch.tensor(1.0).as_subclass(Odd))


def test_inside_a_function_transform_nothing_can_be_held():
    outside, answers = torch.tensor(1.0), []
    torch.func.grad(lambda x: (answers.append(Ring.can_hold(outside)), x**2)[1])(torch.tensor(2.0))
    assert answers == [False]


def test_a_call_may_log_more_values_than_one_piece_of_memory_holds():
    values = [torch.tensor(i) for i in range(2 * SLOTS + 10)]
    assert through(*values) == list(range(2 * SLOTS + 10))


def test_memory_is_used_again():
    ring, places = Ring(), set()
    for step in range(20 * SLOTS):
        held = ring.put(torch.tensor(float(step)), "x")
        places.add(held.data_ptr())
        ring.add(0, step, {"x": held})
        list(ring.take())
    assert len(places) <= STEPS


def test_entries_come_in_order_each_once_with_its_time_and_step():
    ring, taken = Ring(), []
    for step in range(200):
        values = {"a": ring.put(torch.tensor(step), "a")} if step % 3 else {"b": step}
        ring.add(1000 + step, step, values)
        taken += ring.take()
    taken += ring.take(everything=True)
    assert [(e.time_ms, e.step, *e.values.values()) for e in taken] == [(1000 + i, i, i) for i in range(200)]


def test_the_order_of_the_names_is_kept():
    ring = Ring()
    ring.add(0, 0, {"z": 1, "a": ring.put(torch.tensor(2), "a"), "m": 3})
    (entry,) = ring.take(everything=True)
    assert list(entry.values.items()) == [("z", 1), ("a", 2), ("m", 3)]


def test_the_first_entry_goes_at_once_and_then_a_half_at_a_time(monkeypatch):
    monkeypatch.setattr(ring, "SECONDS", 1000.0)
    full = Ring()
    fill(full, 1)
    assert steps_of(full.take()) == [0]
    fill(full, STEPS // 2 - 1, first=1)
    assert steps_of(full.take()) == []
    fill(full, 1, first=STEPS // 2)
    assert steps_of(full.take()) == list(range(1, STEPS // 2 + 1))


def test_after_some_time_a_half_goes_although_it_is_not_full(monkeypatch):
    monkeypatch.setattr(ring, "SECONDS", 0.05)
    slow = Ring()
    fill(slow, 1)
    assert steps_of(slow.take()) == [0]
    fill(slow, 1, first=1)
    assert steps_of(slow.take()) == []
    time.sleep(0.06)
    fill(slow, 1, first=2)
    assert steps_of(slow.take()) == [1, 2]


def test_nothing_is_waited_for_until_both_halves_are_full(monkeypatch):
    late, taken, waits = Ring(Late), [], []

    def arrive(seconds):
        waits.append(len(taken))
        Late.arrives = True

    monkeypatch.setattr(Late, "arrives", False)
    monkeypatch.setattr(ring.time, "sleep", arrive)
    under_way = 0
    for step in range(STEPS):
        taken += steps_of(late.take())
        if waits:
            break
        fill(late, 1, first=step)
        under_way = step + 1 - len(taken)
    assert waits == [0]  # not one step had come back when it was waited for, and then once
    assert STEPS // 2 < under_way <= STEPS
    assert taken == list(range(len(taken)))


def test_an_entry_that_could_not_be_dealt_with_comes_again():
    ring = Ring()
    fill(ring, 3)
    entries = ring.take(everything=True)
    assert [next(entries).step, next(entries).step] == [0, 1]
    entries.close()  # as when writing the second one raised an error
    assert ring.pending
    assert steps_of(ring.take(everything=True)) == [1, 2]
    assert not ring.pending


def test_a_failed_device_is_said_with_the_names_and_steps_that_are_lost(monkeypatch):
    monkeypatch.setattr(ring, "SECONDS", 1000.0)
    lost = Ring(Lost)
    lost._sent_seconds = time.monotonic()
    fill(lost, 3, first=10)
    lost.add(0, 13, {"lr": 0.1, "loss": lost.put(torch.tensor(1.0), "loss")})
    message = r"loss: the values of steps 10 to 13 .*device-side assert.*DAYPOINT_DEFER=0"
    with pytest.raises(RunError, match=message):
        list(lost.take(everything=True))
    (left,) = lost.take(everything=True)
    assert (left.step, left.values) == (13, {"lr": 0.1})
    assert not lost.pending


needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


@needs_cuda
def test_on_cuda_a_step_never_waits():
    ring, values = Ring(), [torch.tensor(float(i), device="cuda") for i in range(500)]
    list(ring.take(everything=True))
    through(values[0], ring=ring)  # memory is there
    torch.cuda.set_sync_debug_mode("error")
    try:
        taken = []
        for step, value in enumerate(values):
            taken += ring.take()
            ring.add(0, step, {"x": ring.put(value, "x")})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    taken += ring.take(everything=True)
    assert [entry.values["x"] for entry in taken] == [float(i) for i in range(500)]


@needs_cuda
def test_on_cuda_values_of_two_streams_are_both_right():
    ring, taken = Ring(), []
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(100):
        with torch.cuda.stream(streams[step % 2]):
            torch.cuda._sleep(1_000_000)
            ring.add(0, step, {"x": ring.put(torch.full((), float(step), device="cuda"), "x")})
        taken += ring.take()
    taken += ring.take(everything=True)
    assert [entry.values["x"] for entry in taken] == [float(i) for i in range(100)]


@needs_cuda
def test_on_cuda_the_replay_of_a_graph_does_not_change_what_was_put():
    given = torch.zeros((), device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        given * 2
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = given * 2
    ring, taken = Ring(), []
    for step in range(100):
        given.fill_(step)
        graph.replay()
        ring.add(0, step, {"x": ring.put(result, "x")})
        taken += ring.take()
    taken += ring.take(everything=True)
    assert [entry.values["x"] for entry in taken] == [2.0 * i for i in range(100)]


@needs_cuda
def test_on_cuda_a_value_of_a_graph_under_capture_is_refused():
    ring, given = Ring(), torch.zeros((), device="cuda")
    with (
        pytest.raises(ScalarError, match=r"loss: .*captured.*replay"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        ring.put(given * 2, "loss")
