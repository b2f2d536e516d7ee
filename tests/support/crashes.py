"""Crash saves on purpose, in processes of their own. Run by test_checkpoint.py: `python crashes.py MODE
DIRECTORY …`.

    points    dies once before, in the middle of, and after every write, fsync, rename and removal of a save;
    more
              arguments choose scenarios
    kills     SIGKILL at a random moment, again and again, always in the same run
    limits    saves under a file size limit (what a full disk or a quota does), for many limits

torch is imported once; each victim is a fork. A checkpoint of step s holds the value s everywhere, so that
whoever reads it can tell whether it is the right one, and whole. One line of JSON for each victim.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from daypoint.base.day import RunFiles
from daypoint.base.errors import CheckpointError
from daypoint.checkpoints import checkpoint
from daypoint.record import identity, shelf

DAY = "20260328"
RECORD = {
    "format": "daypoint/run/1",
    "uid": "00112233aabbccdd",
    "name": "crash",
    "experiment": "crash",
    "day": DAY,
    "timezone": "UTC",
    "config": {"trainer": {"seed": 0}},
    "monitor": {"metric": "accuracy", "mode": "max"},
}


def write(files, **training):
    return checkpoint.write(files, *checkpoint.take(**training, copy=False))


def make(directory: Path) -> RunFiles:
    directory.mkdir(parents=True)
    identity.write_run(directory, RECORD)
    return RunFiles(directory, DAY)


def model_of(step: int, width: int = 8) -> torch.nn.Module:
    model = torch.nn.Linear(width, width)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, step)
    return model


def put(files, step, *, attempt=1, metrics=None, record=RECORD, **more):
    """A checkpoint of a tiny model."""
    return write(
        files,
        step=step,
        epoch=0,
        record=record,
        attempt=attempt,
        model=model_of(step),
        metrics=metrics or {},
        **more,
    )


def save(files: RunFiles, step: int, width: int = 8, attempt: int = 1) -> Path:
    model = model_of(step, width)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, step)
    return write(
        files,
        step=step,
        epoch=0,
        record=RECORD,
        attempt=attempt,
        model=model,
        optimizer=optimizer,
        metrics={"accuracy": float(step)},
        extra={"step": step},
    )


def fork(victim) -> int:
    child = os.fork()
    if child == 0:
        try:
            victim()
        except BaseException as error:
            print(f"victim: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


# ---------------------------------------------------------------- dying at a point


class Points:
    """Counts what a save does to the disk, and dies at the chosen point."""

    def __init__(self, deadly: int) -> None:
        self.count = 0
        self.deadly = deadly

    def point(self) -> None:
        if self.count == self.deadly:
            os._exit(77)
        self.count += 1

    def around(self, function):
        def wrapped(*arguments, **named):
            self.point()
            result = function(*arguments, **named)
            self.point()
            return result

        return wrapped

    def install(self) -> None:
        for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
            setattr(os, name, self.around(getattr(os, name)))
        checkpoint._exchange = self.around(checkpoint._exchange)
        really_open = builtins.open
        points = self

        class Torn:
            def __init__(self, file) -> None:
                self.file = file

            def write(self, content):
                view = memoryview(content)
                points.point()
                self.file.write(view[: len(view) // 2])
                self.file.flush()
                points.point()
                self.file.write(view[len(view) // 2 :])
                points.point()
                return len(view)

            def __getattr__(self, name):
                return getattr(self.file, name)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.file.close()

        def opened(path, mode="r", *arguments, **named):
            file = really_open(path, mode, *arguments, **named)
            if "x" not in mode:
                return file
            points.point()
            return Torn(file)

        builtins.open = opened


def points(base: Path, chosen: list[str]) -> None:
    scenarios = {
        "the first checkpoint": ([], lambda files: save(files, 20)),
        "one more": ([10], lambda files: save(files, 20)),
        "the same step again": ([10, 20], lambda files: save(files, 20, attempt=2)),
        "one more, then thinned out": (
            [10, 15],
            lambda files: (save(files, 20), shelf.prune(files, keep_last=1, keep_best=1)),
        ),
    }
    for name, (before, act) in scenarios.items():
        if chosen and name not in chosen:
            continue
        for deadly in range(10_000):
            files = make(base / name.replace(" ", "-") / str(deadly))
            for step in before:
                save(files, step)

            def victim(deadly=deadly, act=act, files=files):
                Points(deadly).install()
                act(files)

            _, status = os.waitpid(fork(victim), 0)
            code = os.waitstatus_to_exitcode(status)
            print(
                json.dumps({"scenario": name, "point": deadly, "code": code, "run": str(files.directory)}),
                flush=True,
            )
            if code != 77:
                break


# ---------------------------------------------------------------- SIGKILL


def kills(base: Path, count: int) -> None:
    """One run, killed again and again; each new attempt goes on from the newest whole checkpoint."""
    files = make(base / "run")
    generator = random.Random(0)
    for number in range(count):
        found = shelf.latest(files)
        start = 0 if found.path is None else shelf.read_card(found.path)["step"]
        reader, writer = os.pipe()

        def victim(start=start, writer=writer, attempt=number + 1):
            for step in range(start + 1, start + 1000):
                save(files, step, width=256, attempt=attempt)
                os.write(writer, b"%d\n" % step)
                if step % 3 == 0:
                    shelf.prune(files, keep_last=3, keep_best=1)

        child = fork(victim)
        os.close(writer)
        if number % 2:  # a slow machine has saved nothing else by then
            select.select([reader], [], [])
        time.sleep(generator.uniform(0.005, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader) as stream:
            acknowledged = [int(line) for line in stream.read().split()]
        state = examine(files, width=256)
        print(
            json.dumps(
                {"start": start, "acknowledged": acknowledged[-1] if acknowledged else start, **state}
            ),
            flush=True,
        )


# ---------------------------------------------------------------- a full disk


def limits(base: Path) -> None:
    for limit in [0, 1, 100, 600, 1_000, 5_000, 10_000, 16_000, 17_000, 25_000]:
        files = make(base / str(limit))
        save(files, 10, width=64)

        def victim(limit=limit, files=files):
            said = None
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                save(files, 20, width=64)
            except CheckpointError as error:
                said = str(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            print(json.dumps({"limit": limit, "error": said, "run": str(files.directory)}), flush=True)

        os.waitpid(fork(victim), 0)


# ---------------------------------------------------------------- what is there afterwards


def examine(files: RunFiles, width: int = 8) -> dict:
    """What a reader finds in a run, with everything that is wrong with it."""
    wrong: list[str] = []
    steps = []
    for path in sorted(files.checkpoints.glob("step*")):
        wrong += shelf.verify(path)
        with contextlib.suppress(CheckpointError):
            steps.append(value_of(path, width))
            if f"step{steps[-1]:06d}" != path.name:
                wrong.append(f"{path} holds step {steps[-1]}")
    found = shelf.latest(files)
    wrong += found.skipped
    for name in ("last", "best"):
        pointer = files.pointer(name)
        if pointer.exists():
            content = json.loads(pointer.read_bytes())
            target = files.checkpoints / content["checkpoint"]
            if not target.is_dir():
                wrong.append(f"{name}.json points to {content['checkpoint']}, which is not there")
    newest = None if found.path is None else value_of(found.path, width)
    leftovers = len(list(files.checkpoints.glob(".*"))) if files.checkpoints.is_dir() else 0
    return {"steps": steps, "newest": newest, "wrong": wrong, "leftovers": leftovers}


def value_of(path: Path, width: int = 8) -> int:
    """Load a checkpoint for real; the step whose values it holds, -1 if it holds a mixture."""
    model = model_of(-7, width)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    state, card = checkpoint.restore(path, model=model, optimizer=optimizer)
    values = {float(value) for parameter in model.parameters() for value in parameter.detach().unique()}
    values |= {float(v) for entry in optimizer.state.values() for v in entry["momentum_buffer"].unique()}
    values |= {float(card["step"]), float(state.extra["step"])}
    return int(values.pop()) if len(values) == 1 else -1


if __name__ == "__main__":
    torch.set_num_threads(1)
    mode, place = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(place, ignore_errors=True)
    save(make(place / "warm-up"), 0)  # whatever is imported at a first save; a victim has no time for that
    if mode == "points":
        points(place, sys.argv[3:])
    elif mode == "kills":
        kills(place, int(sys.argv[3]))
    else:
        limits(place)
