"""One process of the benchmark: a training loop of about a millisecond a step, and one contender in it.

    python session.py pace CONTENDER '{"project": …}'     stretches of steps: without logging, with the list, with the contender
    python session.py keep CONTENDER '{"project": …}'     log every step; what was logged is noted where a SIGKILL cannot reach it
    python session.py calibrate none '{}'                 the width of the model that makes a step a millisecond

The last line of stdout is the result, as JSON. Runs in the contender's environment and imports only torch and the contender.
This module knows nothing of other contenders, files of results or tables. The loop keeps one thread busy, so on two cores
a contender's helper process has the other one.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import statistics
import struct
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contender import Contender, List, Nothing
from contenders import CONTENDERS
from processes import cpu_seconds, descendants, peak_bytes
from torch import nn

BATCH, FEATURES, CLASSES, BATCHES = 64, 64, 10, 32
LEARNING_RATE = 0.1
QUIET_SHARE = 0.05
"""A process and its helpers are quiet when they use less than this share of one core."""
LONGEST_WAIT_SECONDS = 20.0
ACK = struct.Struct("<3d")
"""loss, lr, grad_norm of one step in the file of acknowledgements; before them the number of steps, in 8 bytes."""

Log = Callable[[int, Any, float, Any], None]


class Training:
    """A classifier on random data. `step()` is everything that a training step does, logging aside."""

    def __init__(self, width: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.inputs = torch.randn(BATCHES, BATCH, FEATURES)
        self.labels = torch.randint(0, CLASSES, (BATCHES, BATCH))
        self.model = nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.done = 0

    def step(self) -> tuple[torch.Tensor, float, torch.Tensor]:
        """loss (0-dim), lr, gradient norm (0-dim)."""
        index = self.done % BATCHES
        self.done += 1
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(self.inputs[index]), self.labels[index])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss, LEARNING_RATE * 0.9999**self.done, norm


def stretch(training: Training, log: Log, first_step: int, seconds: float, most_steps: int) -> dict[str, Any]:
    """Train and log for so long, or so many steps. Nanoseconds of the whole, and of each call of `log`."""
    clock = time.perf_counter_ns
    calls = array("q", bytes(8 * most_steps))
    limit = clock() + int(seconds * 1e9)
    count = 0
    cpu_began = time.thread_time_ns()
    began = clock()
    while count < most_steps:
        loss, lr, norm = training.step()
        before = clock()
        log(first_step + count, loss, lr, norm)
        after = clock()
        calls[count] = after - before
        count += 1
        if after > limit:
            break
    whole = clock() - began
    cpu = time.thread_time_ns() - cpu_began
    ordered = sorted(calls[:count])
    return {
        "steps": count,
        "step_us": whole / count / 1e3,
        "step_cpu_us": cpu / count / 1e3,
        "call_mean_us": sum(ordered) / count / 1e3,
        "call_median_us": ordered[count // 2] / 1e3,
        "call_p99_us": ordered[count * 99 // 100] / 1e3,
    }


def settle() -> float:
    """Wait until this process and its helpers have nothing left to do; the seconds it took."""
    began = last = time.monotonic()
    used = cpu_seconds()
    while last - began < LONGEST_WAIT_SECONDS:
        time.sleep(0.25)
        now, using = time.monotonic(), cpu_seconds()
        if using - used < QUIET_SHARE * (now - last):
            break
        last, used = now, using
    return time.monotonic() - began


def pace(contender: Contender, options: dict[str, Any]) -> dict[str, Any]:
    """Rounds of three stretches in random order, each begun when all is quiet."""
    training = Training(options["width"])
    baseline, memory = Nothing(), List()
    project = Path(options["project"])
    memory.open(project, options["name"])
    contender.open(project, options["name"])
    seconds = options["stretch_seconds"]
    burst = min(seconds, contender.burst_seconds)
    modes: dict[str, tuple[Log, float]] = {
        "none": (baseline.log, seconds),
        "list": (memory.log, seconds),
        "contender": (contender.log, burst),
    }
    logged = 0
    stretch(training, contender.log, 0, burst / 2, 200)  # the first calls set things up
    logged += 200
    stretch(training, memory.log, 0, seconds / 2, 200)
    rounds = []
    order = list(modes)
    for _ in range(options["rounds"]):
        random.shuffle(order)
        measured: dict[str, Any] = {}
        for mode in order:
            log, duration = modes[mode]
            waited = settle()
            measured[mode] = stretch(training, log, logged, duration, options["most_steps"])
            measured[mode]["waited_seconds"] = waited
            if mode == "contender":
                logged += measured[mode]["steps"]
        rounds.append(measured)
    contender.close()
    return {"rounds": rounds}


def keep(contender: Contender, options: dict[str, Any]) -> dict[str, Any]:
    """Log every step, and note each one when `log` has returned. The trainer may be killed at any moment."""
    training = Training(options["width"])
    project = Path(options["project"])
    handle = contender.open(project, options["name"])
    Path(options["handle"]).write_text(handle)
    steps = options["steps"]
    with open(options["acks"], "r+b") as file:
        acks = mmap.mmap(
            file.fileno(), 8 + ACK.size * steps
        )  # in the kernel's hands, so a SIGKILL loses none
    first_step_at = 0.0
    for step in range(steps):
        loss, lr, norm = training.step()
        contender.log(step, loss, lr, norm)
        if step == 0:
            first_step_at = time.monotonic()
        ACK.pack_into(acks, 8 + ACK.size * step, loss.item(), lr, norm.item())
        struct.pack_into("<q", acks, 0, step + 1)
    helpers = descendants(os.getpid())
    helpers_peak = sum(map(peak_bytes, helpers))
    began = time.monotonic()
    contender.close()
    ended = time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "start_seconds": first_step_at - options["started"],
        "close_seconds": ended - began,
        "last_step_at": began,
        "peak_bytes": peak,
        "helpers_peak_bytes": helpers_peak,
        "helpers": helpers,
    }


def calibrate(contender: Contender, options: dict[str, Any]) -> dict[str, Any]:
    """The width, in steps of 16, whose median step is nearest to a millisecond."""
    took = {}
    low, high = 1, 64
    while low < high:
        middle = (low + high) // 2
        training = Training(16 * middle)
        durations = []
        for _ in range(250):
            began = time.perf_counter_ns()
            training.step()
            durations.append(time.perf_counter_ns() - began)
        took[middle] = statistics.median(durations[50:]) / 1e6
        if took[middle] < options["target_ms"]:
            low = middle + 1
        else:
            high = middle
    best = min(took, key=lambda width: abs(took[width] - options["target_ms"]))
    return {"width": 16 * best, "step_ms": took[best]}


if __name__ == "__main__":
    action, name, text = sys.argv[1:]
    result = {"pace": pace, "keep": keep, "calibrate": calibrate}[action](
        CONTENDERS[name](), json.loads(text)
    )
    sys.stdout.flush()
    print("\n" + json.dumps(result), flush=True)
