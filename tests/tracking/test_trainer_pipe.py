"""The courier's end of the pipe to its trainer."""

import json
import os
import subprocess
import sys
import time

import pytest

from daypoint.tracking.trainer_pipe import TrainerPipe


class Trainer:
    """The other end: writes requests, reads answers."""

    def __init__(self, pid):
        requests, self.to_courier = os.pipe()
        self.from_courier, answers = os.pipe()
        os.set_blocking(answers, False)
        self.ends = [requests, self.from_courier, answers]
        self.pipe = TrainerPipe(pid, requests, answers)

    def write(self, data):
        os.write(self.to_courier, data)

    def hang_up(self):
        os.close(self.to_courier)
        self.to_courier = None

    def close(self):
        for end in [*self.ends, *([self.to_courier] if self.to_courier is not None else [])]:
            os.close(end)


@pytest.fixture
def trainer():
    trainer = Trainer(os.getppid())
    yield trainer
    trainer.close()


def test_requests_come_in_their_order_and_a_half_line_waits_for_its_rest(trainer):
    trainer.write(b'{"run": "a"}\n{"run": "b"}\n{"clo')
    assert list(trainer.pipe.requests(1)) == [{"run": "a"}, {"run": "b"}]
    assert list(trainer.pipe.requests(0)) == []
    trainer.write(b'se": "a"}\n')
    assert list(trainer.pipe.requests(1)) == [{"close": "a"}]
    assert not trainer.pipe.hung_up


def test_the_end_of_the_pipe_is_a_hang_up_and_then_waiting_takes_its_time(trainer):
    trainer.hang_up()
    assert list(trainer.pipe.requests(1)) == []
    assert trainer.pipe.hung_up
    begun = time.monotonic()
    assert list(trainer.pipe.requests(0.2)) == []
    assert time.monotonic() - begun >= 0.2


def test_what_a_trainer_asked_for_before_it_died_is_heard():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    trainer = Trainer(process.pid)  # a forked worker still holds its end of the pipe
    trainer.write(b'{"close": "a"}\n')
    assert list(trainer.pipe.requests(0)) == [{"close": "a"}]
    assert trainer.pipe.hung_up
    trainer.close()


def test_a_trainer_that_does_not_read_does_not_stop_us_and_gets_it_all_later(trainer):
    sent = [{"n": n, "text": "x" * 1000} for n in range(200)]  # three times what a pipe holds
    for message in sent:
        trainer.pipe.tell(message)
    received = b""
    while received.count(b"\n") < len(sent):
        received += os.read(trainer.from_courier, 2**16)
        trainer.pipe.flush()
    assert [json.loads(line) for line in received.splitlines()] == sent


def test_an_answer_to_nobody_is_dropped(trainer):
    os.close(trainer.from_courier)
    trainer.ends.remove(trainer.from_courier)
    trainer.pipe.tell({"done": True})
    trainer.pipe.flush()
