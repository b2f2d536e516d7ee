"""A model from an identity card alone: built from the hyperparameters in the card, not from the code that trained it.

A card is data from disk, so what it may call is held to the allow-list (`daypoint.record.allowlist`). The weights are
`daypoint.checkpoints.checkpoint`'s. One number: building draws random numbers, but leaves the state of every CPU generator as it was.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daypoint.base.errors import CheckpointError, ConfigError
from daypoint.hydra import app as hydra_app
from daypoint.record import allowlist


def build_model(
    card: Mapping[str, Any], *, root: Path, allow: Iterable[str] = (), where: str = "the card"
) -> torch.nn.Module:
    """The model that a card describes, with random weights, in training mode, on the CPU.

    Args:
        card: from `shelf.read_card`.
        root: the project whose allow-list counts.
        allow: more modules or dotted paths that a card may name.
        where: how the card is called in an error.

    Raises:
        CheckpointError: the card has no model, or it cannot be built (a class was moved, a package is missing, an argument is
            gone); says which and what to do.
    """
    other = "or load the weights into a model that you build yourself: daypoint.load(ADDRESS, model=MODEL)"
    node = card["config"].get("model")
    if not isinstance(node, dict) or "_target_" not in node:
        raise CheckpointError(
            f"{where}: expected a section `model` with a _target_ in its config, found {_found(card['config'])}; {other}"
        )
    try:
        allowlist.check(node, (*allowlist.of_project(root), *allow), "model")
        _refuse_interpolations(node, "model")
        with random_state_kept():
            model = hydra_app.instantiate(node)
    except ConfigError as error:
        raise CheckpointError(f"{where}: the model cannot be built: {error}; {other}") from error
    except Exception as error:  # whatever the constructor, or Hydra on its behalf, may raise
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise CheckpointError(
            f"{where}: the model cannot be built: {node['_target_']}: {reason}; was it changed since? "
            f"check out the commit that the card names, {other}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise CheckpointError(
            f"{where}: model: expected a torch module from {node['_target_']}, found {type(model).__name__}; {other}"
        )
    return model


def _found(config: Mapping[str, Any]) -> str:
    model = config.get("model")
    return f"the sections {', '.join(config) or '(none)'}" if model is None else f"model={model!r}"[:200]


def _refuse_interpolations(value: Any, key: str) -> None:
    """A card is resolved; what looks like an interpolation would be evaluated anew, by whatever it names."""
    if isinstance(value, str) and "${" in value:
        raise ConfigError(f"{key}: expected a resolved value, found {value!r}")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        _refuse_interpolations(item, f"{key}.{name}")


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """A block that leaves every CPU generator as it was: loading a model must not change what a program draws next."""
    python, numbers = random.getstate(), np.random.get_state(legacy=False)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
