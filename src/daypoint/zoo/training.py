"""What a training script needs beside its loop: seeds, the device, precision, checks, validation.

Nothing here knows of runs, configs or days, and no other part of daypoint needs it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from daypoint.base.errors import ConfigError


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's random numbers (all devices).

    Call it at the start of each run: then a run does not depend on what ran before it in the same process.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` takes cuda, then mps, then cpu.

    Raises:
        ConfigError: it is not there.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"trainer.device: expected auto, cpu, cuda, cuda:N or mps, found {name!r}"
        ) from None
    there = {"cpu": True, "cuda": has_cuda, "mps": has_mps}.get(device.type, False)
    if not there or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"trainer.device: {name!r} is not there on this machine; use trainer.device=auto")
    return device


def check_outputs(
    model: nn.Module, criterion: Callable[[Tensor, Tensor], Tensor], data: Any, device: torch.device
) -> None:
    """Check before the training, with one batch in eval mode, that the model answers in the shape that the loss compares.

    Outputs [batch] beside targets [batch, 1] would be broadcast to [batch, batch], and train to nonsense; a class too few
    would end in an index error. Random numbers are put back. Losses other than torch's own may compare what they like, and a
    model that cannot take the batch at all is left to say so in the training, where that is recorded.

    Raises:
        ConfigError: the shapes do not fit.
    """
    if type(criterion) not in (nn.CrossEntropyLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss):
        return
    was_training = model.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        x, y = next(iter(data.train_loader(epoch=0)))
        model.eval()
        try:
            with torch.no_grad():
                found = tuple(model(x.to(device)).shape)
        except Exception:
            return
        finally:
            model.train(was_training)
    if type(criterion) is nn.CrossEntropyLoss and not y.is_floating_point():
        expected = (len(x), data.outputs, *y.shape[1:])
        fits = len(found) == len(expected) and found[1] >= data.outputs
    else:
        expected = tuple(y.shape)
        fits = found == expected
    if not fits:
        raise ConfigError(
            f"model: expected outputs of shape {list(expected)} (a batch of {len(x)}, data.outputs={data.outputs}) for "
            f"{type(criterion).__name__}, found {list(found)}; give it outputs: ${{data.outputs}}, or look with debug=shapes"
        )


def make_precision(
    precision: str, device: torch.device
) -> tuple[Callable[[], AbstractContextManager[Any]], torch.amp.GradScaler]:
    """The autocast context and the loss scaler of a precision. Only fp16 scales; for the others the scaler
    does nothing.

    Args:
        precision: fp32 | bf16 | fp16.

    Raises:
        ConfigError: fp16 on a CPU, which would only be slow and less exact.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("trainer.precision: fp16 needs a GPU, the device is cpu; use bf16 or fp32")
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    if precision == "fp32":
        return nullcontext, scaler
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    return lambda: torch.autocast(device.type, dtype=dtype), scaler


def check_steps(optimizer: Any, scheduler: Any) -> None:
    """Refuse an optimizer or a scheduler whose `step` needs an argument, since train.py passes none.

    Raises:
        ConfigError: a closure (LBFGS) or a metric (ReduceLROnPlateau) is needed.
    """
    for key, made in (("optimizer", optimizer), ("scheduler", scheduler)):
        # Of the class: on the object it may be wrapped by torch.
        try:
            _, *arguments = inspect.signature(type(made).step).parameters.values()
        except (AttributeError, TypeError, ValueError):
            continue  # a wrapper of somebody's own
        if needed := [each.name for each in arguments if each.default is each.empty and each.kind < 2]:
            raise ConfigError(
                f"{key}: expected one whose step() needs nothing, found {type(made).__name__}, which needs "
                f"{', '.join(needed)}; choose another one, or give it that in train.py"
            )


@torch.no_grad()
def evaluate(
    model: nn.Module,
    criterion: Callable[[Tensor, Tensor], Tensor],
    data: Any,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> dict[str, Tensor]:
    """Validation metrics as 0-dim tensors: `val/loss`, and `val/accuracy` or `val/r2`, over all validation
    rows.

    Sums run in float64 on the device, so neither the batch size nor the number of rows moves the result, and
    nothing waits for the device before the end.
    """
    was_training = model.training
    model.eval()
    # MPS has no float64.
    kind = torch.float32 if device.type == "mps" else torch.float64
    rows = 0
    loss_sum, right, error, total, total_squares = torch.zeros(5, dtype=kind, device=device)
    for x, y in data.val_loader():
        x, y = x.to(device), y.to(device)
        with autocast():
            output = model(x)
            loss_sum += criterion(output, y).to(kind) * len(x)
        rows += len(x)
        if data.task == "classification":
            right += (output.argmax(dim=1) == y).sum()
        else:
            y, output = y.to(kind), output.to(kind)
            error += ((output - y) ** 2).sum()
            total += y.sum()
            total_squares += (y**2).sum()
    model.train(was_training)
    metrics = {"val/loss": loss_sum / rows}
    if data.task == "classification":
        metrics["val/accuracy"] = right / rows
    else:
        # Coefficient of determination, 1 - residual / total sum of squares (S. Wright, 1921).
        metrics["val/r2"] = 1 - error / (total_squares - total**2 / (rows * data.outputs))
    return metrics
