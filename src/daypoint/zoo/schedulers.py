"""Learning-rate schedules. Each is a function (optimizer, total_steps, ...) that returns a torch LRScheduler.

`train.py` steps a schedule once per optimizer step (not per epoch); `total_steps` is the number of those in
the whole run. torch's own schedules can be used in conf/scheduler too. A schedule's state is plain data, and
after `load_state_dict` it goes on exactly where it was. It knows nothing of epochs. A warm-up of
n steps starts at 1/n of the optimizer's rate, never at 0, so no step is wasted.
"""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR, StepLR

from daypoint.base.errors import ConfigError


def none(optimizer: Optimizer) -> LRScheduler:
    """The optimizer's own learning rate throughout."""
    return ConstantLR(optimizer, factor=1.0, total_iters=0)


def cosine(
    optimizer: Optimizer, total_steps: int, warmup_fraction: float = 0.05, final_fraction: float = 0.0
) -> LRScheduler:
    """Up in a line for `warmup_fraction` of the steps, then down half a cosine to `final_fraction` of it.

    The decay is that of Loshchilov and Hutter, "SGDR" (2017), without restarts.

    Raises:
        ConfigError: a fraction is out of range.
    """
    _check_range("warmup_fraction", warmup_fraction)
    if not 0 <= final_fraction <= 1:
        raise ConfigError(f"scheduler.final_fraction: expected 0 to 1, found {final_fraction}")
    return WarmupCosine(optimizer, total_steps, round(warmup_fraction * total_steps), final_fraction)


def onecycle(
    optimizer: Optimizer,
    total_steps: int,
    max_lr: float | None = None,
    warmup_fraction: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    cycle_momentum: bool = False,
) -> LRScheduler:
    """torch's OneCycleLR: from max_lr / div_factor up to `max_lr` (None: the optimizer's), then far down.

    `cycle_momentum` moves the momentum (or Adam's first beta) between 0.95 and 0.85 the other way, as in
    Smith and Topin, "Super-Convergence" (2018), and so overrides the optimizer's own; it is off unless asked
    for.

    Raises:
        ConfigError: `warmup_fraction` is out of range, or the optimizer has no momentum to cycle.
    """
    _check_range("warmup_fraction", warmup_fraction)
    if cycle_momentum and not optimizer.defaults.keys() & {"momentum", "betas"}:
        raise ConfigError(
            f"scheduler.cycle_momentum: expected an optimizer with momentum or betas, found "
            f"{type(optimizer).__name__}; use scheduler.cycle_momentum=false"
        )
    return OneCycleLR(
        optimizer,
        max_lr=[group["lr"] if max_lr is None else max_lr for group in optimizer.param_groups],
        total_steps=max(1, total_steps),  # a run of no epochs has none
        # torch divides by zero when the warm-up is exactly one step long.
        pct_start=warmup_fraction if warmup_fraction * total_steps > 1 else 0.0,
        div_factor=div_factor,
        final_div_factor=final_div_factor,
        cycle_momentum=cycle_momentum,
    )


def step(
    optimizer: Optimizer, total_steps: int, gamma: float = 0.3, drops: int = 3, step_size: int | None = None
) -> LRScheduler:
    """Multiply the rate by `gamma` every `step_size` optimizer steps; None: `drops` times, evenly spread.

    Raises:
        ConfigError: `drops` or `step_size` is too small.
    """
    if drops < 0 or (step_size is not None and step_size < 1):
        raise ConfigError(
            f"scheduler: expected drops >= 0 and step_size >= 1 or null, found {drops} and {step_size}"
        )
    every = max(1, math.ceil(total_steps / (drops + 1))) if step_size is None else step_size
    return StepLR(optimizer, step_size=every, gamma=gamma)


class WarmupCosine(LRScheduler):
    """See `cosine`. After `total_steps` the rate stays at its last value."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int, final_fraction: float
    ) -> None:
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.final_fraction = final_fraction
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [base * self._factor(self.last_epoch) for base in self.base_lrs]

    def _factor(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))


def _check_range(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"scheduler.{name}: expected at least 0 and below 1, found {value}")
