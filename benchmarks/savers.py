"""The ways to save a training that checkpoint.py compares, each with a way to read back what it wrote.

Everybody brings the data to the disk. They know nothing of timing. A linear layer of 1024 × 1024 in float32 and the two
moments of Adam for it are 12.6 MB.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import daypoint
from daypoint.checkpoints import checkpoint
from daypoint.record import shelf

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # that is meant

WIDTH = 1024
Tensors = dict[str, torch.Tensor]


class Training:
    """What is saved: linear layers and their Adam, after one step, with random numbers in all of it."""

    def __init__(self, layers: int, seed: int | None = None) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if seed is None else torch.randn_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> Tensors:
        """Everything that has to come back."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            named |= {f"optimizer.{index}.{name}": tensor for name, tensor in entries.items()}
        return named

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Contender:
    """A way to save: `save` returns when training may go on, `is_done` tells whether all is on the disk."""

    title = ""

    def __init__(self, training: Training, directory: Path) -> None:
        self.training = training
        self.path = directory / "saved"

    def save(self) -> None:
        raise NotImplementedError

    def is_done(self) -> bool:
        return True

    def read(self) -> Tensors:
        """What is on the disk."""
        raise NotImplementedError

    def remove(self) -> None:
        """Make room for the next."""
        shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink()

    def close(self) -> None:
        pass


class Raw(Contender):
    title = "raw disk: `write`, `fsync`"

    def save(self) -> None:
        with open(self.path, "xb", buffering=0) as file:
            for tensor in self.training.tensors().values():
                view = memoryview(tensor.detach().numpy()).cast("B")
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())

    def read(self) -> Tensors:
        content, found, start = memoryview(bytearray(self.path.read_bytes())), {}, 0
        for name, tensor in self.training.tensors().items():
            end = start + tensor.nbytes
            found[name] = torch.frombuffer(content[start:end], dtype=tensor.dtype).reshape(tensor.shape)
            start = end
        return found


class TorchSave(Contender):
    title = "`torch.save`, `fsync`"

    def save(self) -> None:
        with open(self.path, "xb") as file:
            torch.save(self.training.state(), file)
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> Tensors:
        return _named(torch.load(self.path, weights_only=True))


class Safetensors(Contender):
    title = "safetensors `save_file`, `fsync`"

    def save(self) -> None:
        save_file(self.training.tensors(), self.path)
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())

    def read(self) -> Tensors:
        return load_file(self.path)


class Distributed(Contender):
    title = "DCP `async_save`"
    stager: DefaultStager | None = None

    def save(self) -> None:
        self.future = dcp.async_save(
            self.training.state(), checkpoint_id=self.path, no_dist=True, async_stager=self.stager
        )

    def is_done(self) -> bool:
        return self.future.done() and self.future.result() is not None

    def read(self) -> Tensors:
        empty = Training(len(self.training.model)).state()
        dcp.load(empty, checkpoint_id=self.path, no_dist=True)
        return _named(empty)


class DistributedKept(Distributed):
    title = "DCP `async_save`, stager kept"

    def __init__(self, training: Training, directory: Path) -> None:
        super().__init__(training, directory)
        self.stager = DefaultStager(StagingOptions(False, False, False, False))

    def close(self) -> None:
        self.stager.close()


class Daypoint(Contender):
    title = "daypoint `run.save`"
    wait = False

    def __init__(self, training: Training, directory: Path) -> None:
        self.training = training
        cfg = {"tracking": {"enabled": False, "outputs": str(directory / "outputs")}}
        self.opened = daypoint.open_run(cfg, quiet=True)
        self.run = self.opened.__enter__()
        self.pointer = self.run.directory / "checkpoints" / "last.json"

    def save(self) -> None:
        self.run.log(loss=1.0)
        self.path = self.run.save(
            model=self.training.model, optimizer=self.training.optimizer, wait=self.wait
        )

    def is_done(self) -> bool:
        # The pointer is the last thing that is written.
        return self.pointer.exists() and json.loads(self.pointer.read_bytes())["step"] == self.run.step

    def read(self) -> Tensors:
        empty = Training(len(self.training.model))
        if problems := shelf.verify(self.path):
            raise ValueError(problems)
        checkpoint.restore(self.path, model=empty.model, optimizer=empty.optimizer)
        return empty.tensors()

    def close(self) -> None:
        self.opened.__exit__(None, None, None)


class DaypointWaiting(Daypoint):
    title = "daypoint `run.save(wait=True)`"
    wait = True


CONTENDERS: dict[str, type[Contender]] = {
    "raw": Raw,
    "torch": TorchSave,
    "safetensors": Safetensors,
    "dcp": Distributed,
    "dcp-kept": DistributedKept,
    "daypoint-wait": DaypointWaiting,
    "daypoint": Daypoint,
}


def _named(state: dict[str, Any]) -> Tensors:
    named = {f"model.{name}": tensor for name, tensor in state["model"].items()}
    for index, entries in state["optimizer"]["state"].items():
        named |= {f"optimizer.{index}.{name}": tensor for name, tensor in entries.items()}
    return named
