"""What a checkpoint costs a training: how long it waits, and how long until the disk has it; daypoint, its peers and the raw disk.

    python benchmarks/checkpoint.py             100 MB and 1 GB; some minutes, 6 GB of memory, 4 GB of disk
    python benchmarks/checkpoint.py --quick     12 MB, twice; for tests, its times mean little

All in one process, interleaved: every round saves the same training once with every contender, in a new random order, on a disk that
has come to rest. Everybody brings the data to the disk (fsync). While a background write goes on, training steps are made and
counted. In the last round everything is read back and compared, bit by bit. benchmarks/README.md says how to read the numbers.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import results
import torch
from savers import CONTENDERS, WIDTH, Contender, Training

HERE = Path(__file__).parent
LAYERS = {"100 MB": 8, "1 GB": 80}
"""Linear layers, see `savers.Training`."""


class Steps:
    """A training step of a few milliseconds on one thread, which reads and writes none of what is saved."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x = torch.randn(128, 512)
        self.seconds(20)

    def step(self) -> None:
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self, count: int) -> float:
        """How long a step takes with nothing beside it."""
        began = time.perf_counter()
        for _ in range(count):
            self.step()
        return (time.perf_counter() - began) / count


def measure(contender: Contender, steps: Steps) -> dict[str, float]:
    """One save on a disk at rest, with training steps until it is done."""
    gc.collect()
    os.sync()
    alone = steps.seconds(50)
    count = 0
    began = time.perf_counter()
    contender.save()
    blocked = time.perf_counter() - began
    while not contender.is_done():
        steps.step()
        count += 1
    total = time.perf_counter() - began
    return {"blocked": blocked, "total": total, "cost": total - count * alone, "steps": count}


def compare(contender: Contender) -> None:
    """What was written has to be what was saved, to the last bit."""
    found = contender.read()
    for name, tensor in contender.training.tensors().items():
        if not torch.equal(_bytes(found[name]), _bytes(tensor)):
            raise SystemExit(f"{contender.title}: {name} is not what was saved")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def rounds(layers: int, count: int, scratch: Path, chance: random.Random, say: Callable[[str], None]) -> Any:
    """All measurements of one size, by contender."""
    training, steps = Training(layers, seed=0), Steps()
    size = sum(tensor.nbytes for tensor in training.tensors().values())
    free = shutil.disk_usage(scratch).free
    if free < 4 * size:
        raise SystemExit(f"{scratch}: expected {4 * size / 1e9:.1f} GB of free space, found {free / 1e9:.1f}")
    contenders = {}
    for name, kind in CONTENDERS.items():
        (scratch / name).mkdir()
        contenders[name] = kind(training, scratch / name)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(-1, count):  # the first round is for imports and warm caches
        chance.shuffle(order)
        for name in order:
            of = measure(contenders[name], steps)
            say(f"{number + 1}/{count} {name:<14} {of['blocked']:.3f} {of['total']:.3f} {of['cost']:.3f} s")
            if number >= 0:
                measured[name].append(of)
            if number == count - 1:
                compare(contenders[name])
            contenders[name].remove()
    for name, contender in contenders.items():
        contender.close()
        shutil.rmtree(scratch / name)
    return size, measured


def summary(measured: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Medians, and medians of the ratios within each round."""

    def times_raw(name: str, key: str) -> float:
        return median(of[key] / raw["total"] for of, raw in zip(measured[name], measured["raw"], strict=True))

    return {
        name: {
            **{key: median(of[key] for of in rounds) for key in ("blocked", "total", "cost", "steps")},
            **{f"{key}_times_raw": times_raw(name, key) for key in ("blocked", "total", "cost")},
            "rounds": rounds,
        }
        for name, rounds in measured.items()
    }


def file_system(path: Path) -> str:
    """The kind of file system, where the system tells: on tmpfs the disk is memory."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    above = [(len(where), kind) for where, kind in mounts if path.resolve().is_relative_to(where)]
    return max(above)[1] if above else "unknown"


# ---------------------------------------------------------------- the page


def markdown(document: dict[str, Any]) -> str:
    host = document["machine"]
    lines = [
        f"# What a checkpoint costs, {document['date'][:10]}",
        "",
        f"    {document['command']}",
        "",
        f"{host['cores']} cores of {host['cpu']}, {host['memory_gib']} GiB, {host['system']}, Python {host['python']}, "
        f"{document['file_system']}; {document['minutes']} minutes; load average at the end {host['load_average_at_end'][0]} "
        "(the training steps alone make 1).",
        "",
        "*training waits*: until the call returns. *on disk after*: until all is on the disk. *costs training*: the time until then, less that of "
        "the training steps that were made in it, at their pace without a save. × raw: the median over rounds of the ratio to "
        "the raw disk in the same round. Everybody's data is brought to the disk by fsync, read back in the last round and compared bit by bit. "
        "daypoint hashes (SHA-256) what it writes, the others do not.",
    ]
    head = ["", "training waits, ms", "× raw", "on disk after, ms", "× raw", "costs training, ms", "× raw"]
    for size, of in document["sizes"].items():
        lines += ["", f"## {size}", ""]
        lines += [
            f"{of['layers']} linear layers {WIDTH} × {WIDTH} in float32 and their Adam, {of['bytes'] / 1e6:,.0f} MB in {of['tensors']} tensors; "
            f"{document['rounds']} rounds.",
            "",
        ]
        contenders = {
            name: {"title": CONTENDERS[name].title, "row": row} for name, row in of["contenders"].items()
        }
        lines += results.table(head, _row, contenders, "row")
    at = f" (commit {document['commit']})" if document["commit"] else ""
    versions = document["versions"]
    text = ", ".join(
        f"{name} {version}{at if name == 'daypoint' else ''}" for name, version in versions.items()
    )
    return "\n".join([*lines, "", "## Versions", "", f"{text}."]) + "\n"


def _row(of: dict[str, Any]) -> list[str]:
    keys = ("blocked", "total", "cost")
    return [cell for key in keys for cell in (f"{of[key] * 1e3:,.0f}", f"{of[f'{key}_times_raw']:.2f}")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="12 MB, two rounds: is everything read back?")
    parser.add_argument("--sizes", default=",".join(LAYERS), help=f"of {', '.join(LAYERS)}; comma-separated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--scratch", type=Path, default=Path(), metavar="DIR", help="on the disk to measure; default: here"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", metavar="DIR", help="where the result goes"
    )
    options = parser.parse_args()
    names = options.sizes.split(",")
    if unknown := set(names) - set(LAYERS):
        parser.error(f"--sizes: {', '.join(sorted(unknown))}: not one of {', '.join(LAYERS)}")
    options.layers = {name: LAYERS[name] for name in names}
    if options.quick:
        options.layers, options.rounds = {"12 MB": 1}, 2
    return options


def command(options: argparse.Namespace) -> str:
    """The command line, less what changes no number."""
    if options.quick:
        return "python benchmarks/checkpoint.py --quick"
    return f"python benchmarks/checkpoint.py --sizes='{options.sizes}' --rounds={options.rounds} --seed={options.seed}"


def versions(names: Iterable[str]) -> dict[str, str]:
    return {name: metadata.version(name) for name in names}


def main() -> None:
    options = arguments()
    moment, began = datetime.now().astimezone(), time.monotonic()
    chance, sizes = random.Random(options.seed), {}
    document = {
        "format": "daypoint/checkpoint-benchmark/1",
        "date": moment.isoformat(timespec="seconds"),
        "command": command(options),
        "commit": results.commit(),
        "rounds": options.rounds,
        "versions": versions(("torch", "safetensors", "daypoint")),
    }
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=options.scratch) as name:
        scratch = Path(name).absolute()
        document["file_system"] = file_system(scratch)
        for size, layers in options.layers.items():
            found, measured = rounds(
                layers,
                options.rounds,
                scratch,
                chance,
                lambda text, size=size: print(size, text, file=sys.stderr, flush=True),
            )
            sizes[size] = {"layers": layers, "bytes": found, "tensors": 10 * layers}
            sizes[size]["contenders"] = summary(measured)
    document |= {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": results.machine(),
        "sizes": sizes,
    }
    print(results.write(options.out, document, moment, "checkpoint", markdown))


if __name__ == "__main__":
    main()
