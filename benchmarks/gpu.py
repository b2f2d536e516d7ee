"""Whether a training step waits for the GPU because of its logging: what the profiler counts per step.

    python benchmarks/gpu.py                 needs one CUDA device; about two minutes
    python benchmarks/gpu.py --quick         half a minute; its times mean little

The loop trains a small classifier, with data that is on the GPU already, and logs three scalars a step:
`loss` and `grad_norm` (0-dim CUDA tensors) and `lr` (a float). It runs without logging, with
`list.append(loss.item())`, with daypoint, and with daypoint that waits (DAYPOINT_DEFER=0). Counted are
synchronisations and transfers to the host. Then values that change after they were logged (in place, by the
replay of a CUDA graph, by the next call of a function compiled with mode="reduce-overhead"), and values of
two streams, are compared one by one with what they were.

Prints a table, writes results/gpu-YYYYMMDD.json, and exits with 1 if daypoint synchronises, transfers more
often than every 16th step, or records one wrong value; with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import daypoint
from daypoint.record import journal

HERE = Path(__file__).parent
BATCH, FEATURES, WIDTH, CLASSES, BATCHES = 256, 256, 1024, 10, 16
SYNCHRONISATIONS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
TRANSFER = "Memcpy DtoH"
MOST_TRANSFERS_PER_STEP = 1 / 16
"""A half of the ring is 32 steps; when half a second is gone, or with two streams, it is sent more often."""

Log = Callable[[Tensor, Tensor, float], None]


class Training:
    """A classifier on random data. Its step never waits for the GPU by itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.inputs = torch.randn(BATCHES, BATCH, FEATURES, device="cuda")
        self.labels = torch.randint(0, CLASSES, (BATCHES, BATCH), device="cuda")
        layers = [
            nn.Linear(FEATURES, WIDTH),
            nn.ReLU(),
            *(nn.Linear(WIDTH, WIDTH), nn.ReLU()) * 4,
            nn.Linear(WIDTH, CLASSES),
        ]
        self.model = nn.Sequential(*layers).to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.done = 0

    def steps(self, count: int, log: Log) -> None:
        for _ in range(count):
            index = self.done % BATCHES
            self.done += 1
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(self.inputs[index]), self.labels[index])
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            log(loss, norm, 0.01)


# ---------------------------------------------------------------- ways to log


@contextlib.contextmanager
def nothing(_directory: Path) -> Iterator[Log]:
    yield lambda loss, norm, lr: None


@contextlib.contextmanager
def in_a_list(_directory: Path) -> Iterator[Log]:
    rows: list[tuple[float, float, float]] = []
    yield lambda loss, norm, lr: rows.append((loss.item(), norm.item(), lr))


@contextlib.contextmanager
def with_daypoint(directory: Path, defer: str = "") -> Iterator[Log]:
    with open_run(directory, defer) as run:
        yield lambda loss, norm, lr: run.log(loss=loss, grad_norm=norm, lr=lr)


@contextlib.contextmanager
def with_daypoint_that_waits(directory: Path) -> Iterator[Log]:
    with with_daypoint(directory, "0") as log:
        yield log


@contextlib.contextmanager
def open_run(directory: Path, defer: str = "") -> Iterator[Any]:
    os.environ["DAYPOINT_DEFER"] = defer
    with daypoint.open_run({"tracking": {"enabled": False}}, run_dir=directory, quiet=True) as run:
        yield run


WAYS = {
    "none": nothing,
    "list": in_a_list,
    "daypoint": with_daypoint,
    "daypoint, DAYPOINT_DEFER=0": with_daypoint_that_waits,
}


# ---------------------------------------------------------------- counting and timing


def measure(way: Callable[[Path], Any], directory: Path, steps: int, rounds: int) -> dict[str, float]:
    """Synchronisations, transfers and microseconds, per step."""
    with way(directory) as log:
        training = Training()
        training.steps(100, log)  # memory is allocated, kernels are loaded
        torch.cuda.synchronize()
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            training.steps(steps, log)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / steps)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            training.steps(steps, log)
    counts = {event.key: event.count for event in profiler.key_averages()}
    synchronised = sum(counts.get(name, 0) for name in SYNCHRONISATIONS)
    transferred = sum(count for name, count in counts.items() if name.startswith(TRANSFER))
    return {
        "synchronisations": synchronised / steps,
        "transfers": transferred / steps,
        "step_us": statistics.median(times) * 1e6,
    }


def torch_sees_a_wait(directory: Path, steps: int) -> str | None:
    """What torch itself says when an operation in the loop waits; None if none does."""
    with with_daypoint(directory) as log:
        training = Training()
        training.steps(100, log)
        torch.cuda.set_sync_debug_mode("error")
        try:
            training.steps(steps, log)
        except RuntimeError as error:
            return str(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return None


# ---------------------------------------------------------------- values that change after they were logged


class NotTried(Exception):
    """The text says why not."""


def in_place(run: Any, steps: int) -> list[Tensor]:
    loss, expected = torch.zeros((), device="cuda"), []
    for step in range(steps):
        loss.fill_(step / 7)
        run.log(value=loss)
        expected.append(loss.clone())
        loss.fill_(-1)
    return expected


def graph_replay(run: Any, steps: int) -> list[Tensor]:
    given, stream, graph = torch.zeros((), device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        given * 2
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = given * 2
    expected = []
    for step in range(steps):
        given.fill_(step / 7)
        graph.replay()
        run.log(value=result)
        expected.append(result.clone())
    return expected


def reduce_overhead(run: Any, steps: int) -> list[Tensor]:
    model = nn.Linear(64, 64).to("cuda")
    compiled = torch.compile(lambda x: model(x).square().mean(), mode="reduce-overhead")
    expected = []
    with torch.no_grad():
        try:
            compiled(torch.zeros((8, 64), device="cuda"))
        except Exception as error:  # that something cannot be compiled here says nothing of the recording
            raise NotTried(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        for step in range(steps):
            result = compiled(torch.full((8, 64), step / 7, device="cuda"))
            run.log(value=result)
            expected.append(result.clone())
    return expected


def two_streams(run: Any, steps: int) -> list[Tensor]:
    streams, expected = [torch.cuda.Stream(), torch.cuda.Stream()], []
    for step in range(steps):
        with torch.cuda.stream(streams[step % 2]):
            torch.cuda._sleep(100_000)
            result = torch.full((), step / 7, device="cuda")
            run.log(value=result)
            expected.append(result.clone())
    torch.cuda.synchronize()
    return expected


def wrong_values(change: Callable[[Any, int], list[Tensor]], directory: Path, steps: int) -> int | str:
    """How many values in the journal are not what was logged; or why that could not be tried."""
    try:
        with open_run(directory) as run:
            expected = change(run, steps)
    except NotTried as error:
        return f"not tried, {error}"
    batches = [
        event for event in journal.read(directory / "journal.jsonl").events if event["event"] == "batch"
    ]
    found = [batch["metrics"]["value"] for batch in batches]
    pairs = zip(found, (value.item() for value in expected), strict=True)
    return sum(value != truth for value, truth in pairs)


# ---------------------------------------------------------------- all of it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", metavar="DIR", help="where the result goes"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            f"gpu.py: expected a CUDA device, found none (torch {torch.__version__}); nothing was measured",
            file=sys.stderr,
        )
        return 2
    steps, rounds = (100, 1) if options.quick else (500, 5)

    with tempfile.TemporaryDirectory() as root:
        ways = {
            name: measure(way, Path(root) / f"way{i}", steps, rounds)
            for i, (name, way) in enumerate(WAYS.items())
        }
        wait = torch_sees_a_wait(Path(root) / "debug", steps)
        changes = (in_place, graph_replay, reduce_overhead, two_streams)
        wrong = {
            change.__name__: wrong_values(change, Path(root) / change.__name__, 300) for change in changes
        }

    failures = [] if wait is None else [f"torch's sync debug mode: {wait}"]
    added = {key: ways["daypoint"][key] - ways["none"][key] for key in ("synchronisations", "transfers")}
    if added["synchronisations"] > 2 / steps:  # the profiler's own come and go
        failures.append(
            f"daypoint adds {added['synchronisations']:.3f} synchronisations to a step, expected none"
        )
    if added["transfers"] > MOST_TRANSFERS_PER_STEP:
        failures.append(
            f"daypoint adds {added['transfers']:.3f} transfers to a step, expected at most {MOST_TRANSFERS_PER_STEP}"
        )
    failures += [
        f"{name}: {count} of 300 values are wrong"
        for name, count in wrong.items()
        if type(count) is int and count
    ]

    moment = datetime.now().astimezone()
    document = {
        "format": "daypoint/gpu-benchmark/1",
        "moment": moment.isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "steps": steps,
        "ways": ways,
        "wrong_values_of_300": wrong,
        "failures": failures,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"gpu-{moment:%Y%m%d}.json"
    file.write_text(json.dumps(document, indent=2) + "\n")

    print(f"{document['device']}, torch {document['torch']}; per step, of {steps}")
    print(f"{'':28}{'synchronisations':>18}{'transfers':>12}{'µs':>10}")
    for name, of in ways.items():
        print(f"{name:28}{of['synchronisations']:>18.3f}{of['transfers']:>12.3f}{of['step_us']:>10.1f}")
    for name, count in wrong.items():
        print(f"{name}: {count if type(count) is str else f'{count} of 300 values wrong'}")
    print(
        *(f"FAILED: {failure}" for failure in failures) if failures else ["all as it should be"],
        f"({file})",
        sep="\n",
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
