"""Losses for a classification or a regression, reduced to one number by the mean.

A regression's answer and target both have shape [batch, outputs]; a classification has scores [batch,
classes] and class numbers int64 [batch]. A loss for the wrong task is refused when it is made, before
training. Any other `_target_`, such as `torch.nn.PoissonNLLLoss`, can be used in conf/loss too; torch then says
what does not fit.
"""

from __future__ import annotations

from torch import nn

from daypoint.base.errors import ConfigError


def auto(task: str | None) -> nn.Module:
    """Cross entropy for a classification, mean squared error for a regression.

    Raises:
        ConfigError: `task` is neither.
    """
    if task not in ("classification", "regression"):
        raise ConfigError(
            f"loss.task: expected classification or regression, found {task!r}; it comes from data.task"
        )
    return nn.CrossEntropyLoss() if task == "classification" else nn.MSELoss()


def cross_entropy(task: str | None, label_smoothing: float = 0.0) -> nn.CrossEntropyLoss:
    """Cross entropy, in nats; `label_smoothing` (0 to 1) is the share spread over all classes.

    Raises:
        ConfigError: the task is not a classification.
    """
    _only_for("classification", task, "cross_entropy")
    return nn.CrossEntropyLoss(label_smoothing=label_smoothing)


def mse(task: str | None) -> nn.MSELoss:
    """Mean squared error, in the units of the data's targets squared (a table's are standardised).

    Raises:
        ConfigError: the task is not a regression.
    """
    _only_for("regression", task, "mse")
    return nn.MSELoss()


def l1(task: str | None) -> nn.L1Loss:
    """Mean absolute error, in the target's units.

    Raises:
        ConfigError: the task is not a regression.
    """
    _only_for("regression", task, "l1")
    return nn.L1Loss()


def huber(task: str | None, delta: float = 1.0) -> nn.HuberLoss:
    """Squared for errors below `delta` (in the target's units), absolute above.

    Raises:
        ConfigError: the task is not a regression.
    """
    _only_for("regression", task, "huber")
    return nn.HuberLoss(delta=delta)


def _only_for(wanted: str, task: str | None, loss: str) -> None:
    if task != wanted:
        fitting = "cross_entropy" if wanted == "regression" else "mse, l1 or huber"
        raise ConfigError(
            f"loss={loss}: expected a {wanted}, found data.task={task}; use loss=auto or {fitting}"
        )
