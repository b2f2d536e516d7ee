"""Builds the model that an identity card describes, from the hyperparameters in it, not from the code that trained it.

A card is data from disk, so what it may call is limited by the allow-list (`daypoint.record.allowlist`). Building draws random
numbers, but leaves every CPU generator as it was. This module does not load the weights; `checkpoints.checkpoint` does.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daypoint.base import keys
from daypoint.base.errors import CheckpointError, ConfigError
from daypoint.hydra import app as hydra_app
from daypoint.models import apart
from daypoint.record import allowlist


def build_model(
    card: Mapping[str, Any], *, root: Path, allow: Iterable[str] = (), where: str = "the card"
) -> torch.nn.Module:
    """The model that a card describes, with random weights, in training mode, on the CPU.

    Args:
        card: from `shelf.read_card`.
        root: the project whose allow-list applies.
        allow: more modules or dotted paths that a card may name.
        where: the checkpoint, for errors.

    Raises:
        CheckpointError: the card has no model, or it cannot be built: a class was moved, a package is missing, an argument
            no longer exists.
    """
    other = "or load the weights into a model that you build yourself: daypoint.load(ADDRESS, model=MODEL)"
    node = card["config"].get("model")
    if not isinstance(node, dict) or "_target_" not in node:
        sections = ", ".join(card["config"]) or "(none)"
        found = f"the sections {sections}" if node is None else f"model={node!r}"[:200]
        raise CheckpointError(
            f"{where}: expected a section `model` with a _target_ in its config, found {found}; {other}"
        )
    try:
        with apart.code_of(card, root, where), random_state_kept():
            allowlist.check(node, (*allowlist.of_project(root), *allow), "model")
            for key, value in keys.leaves({"model": node}).items():
                if "${" in str(value):  # a card is resolved, and Hydra would evaluate this again
                    raise ConfigError(f"{key}: expected a resolved value, found {value!r}")
            model = hydra_app.instantiate(node)
    except CheckpointError:
        raise
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


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Leave every CPU generator as it was: loading a model must not change the random numbers of the program."""
    python, numbers = random.getstate(), np.random.get_state(legacy=False)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
