"""Give a resumed optimizer and scheduler the settings that the config has now, and leave their progress as it was.

`load_state_dict` brings back the old learning rate and the old length of the schedule.
These functions put the new ones in their place: a learning rate changed from a to b is b / a times what it would have been,
from here to the end. They know torch's objects by their attributes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PROGRESS = {
    "last_epoch",
    "_step_count",
    "_last_lr",
    "base_lrs",
    "best",
    "num_bad_epochs",
    "cooldown_counter",
}
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def set_option(optimizer: Any, scheduler: Any, name: str, now: Any, before: Any) -> None:
    """Give an optimizer, whose state was restored, an option as the config has it now.

    Args:
        optimizer: its `param_groups` hold the restored value.
        scheduler: whatever moves the learning rate, or None.
        name: the option, such as `lr` or `weight_decay`.
        now: the value in the config.
        before: the value in the checkpoint.
    """
    if name != "lr":
        for group in optimizer.param_groups:
            group[name] = now
        return
    if not before:  # nothing to scale
        for group in optimizer.param_groups:
            group.update({key: now for key in ("lr", "initial_lr") if key in group})
        return
    ratio = now / before
    for group in optimizer.param_groups:
        for key in _RATES:
            if key in group:
                group[key] = group[key] * ratio
    _scale(scheduler, ratio)


def _scale(scheduler: Any, ratio: float) -> None:
    for name in ("base_lrs", "_last_lr"):
        if rates := getattr(scheduler, name, None):
            setattr(scheduler, name, [rate * ratio for rate in rates])
    for inner in getattr(scheduler, "_schedulers", None) or ():
        _scale(inner, ratio)


def keep_schedule(scheduler: Any, built: Mapping[str, Any]) -> None:
    """Give a scheduler, whose state was restored, the settings it was built with; how far it has come stays.

    Args:
        built: its `state_dict` before the state was restored.
    """
    settings = {name: value for name, value in built.items() if name not in _PROGRESS}
    scheduler.load_state_dict({**scheduler.state_dict(), **settings})
