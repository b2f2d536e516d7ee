"""Makes an MLflow model of a checkpoint, which runs without daypoint and without the user's code.

The model is built from the identity card and the weights alone, never from a live object. It becomes a pt2 program
(torch.export) for any batch size; rows of a table are prepared inside of it. Where that is not possible it becomes a model
from code (`daypoint.models.served`), and the reason is kept. Neither contains a pickle. Before the package gets its final
name MLflow loads it and answers batches of 1, 2, 3 and 7 rows; a package whose answers differ from the checkpoint's own is
refused.

What the model takes is described in `daypoint.models.inputs`. It answers with the model's own output, `predictions`, one for
each row; for a regression on a table in the units of the target. This module knows no MLflow store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from torch import Tensor, nn

from daypoint.base import day
from daypoint.base.day import CheckpointFiles
from daypoint.base.errors import PackageError
from daypoint.checkpoints import checkpoint
from daypoint.models import flavors, inputs, rebuild
from daypoint.models.inputs import BATCHES, ModelInput
from daypoint.models.load import Chosen
from daypoint.record import manifest, shelf
from daypoint.tracking import store
from daypoint.tracking.sync import one_line

TOLERANCE = 1e-5
"""The largest accepted difference from the checkpoint's own answers, as a share of 1 + the largest answer."""


def package(
    chosen: Chosen, *, root: Path, example: Path | None = None, allow: Iterable[str] = ()
) -> dict[str, Any]:
    """Make the package of a checkpoint, `mlflow_model/` in its run's directory, unless it exists.

    Args:
        chosen: from `load.choose`.
        root: the project whose allow-list applies and whose code may be copied.
        example: a .npy file with inputs [batch, …], for a config without data.input_shape.
        allow: more modules or dotted paths that the card may name.

    Returns:
        The manifest.

    Raises:
        PackageError: the model cannot be packaged, its package answers differently, or the existing one was changed.
        CheckpointError: the checkpoint is damaged, or its model cannot be built.
    """
    if chosen.run is None:
        raise PackageError(f"{chosen.path}: expected a checkpoint in its run's directory, found a copy")
    target, card = chosen.run.files.package, shelf.trusted_card(chosen.path, full=True)
    try:
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=600):
            if example is None and target.exists():
                there = manifest.trusted(target)
                if there["card_sha256"] == card["card_sha256"]:
                    return there
            return _make(chosen, card, target, root, example, allow)
    except OSError as error:
        raise PackageError(f"{target}: cannot be written: {error.strerror or error}") from error


def _make(
    chosen: Chosen, card: dict[str, Any], target: Path, root: Path, example: Path | None, allow: Iterable[str]
) -> dict[str, Any]:
    where = str(chosen.path)
    with rebuild.random_state_kept(), _quiet():
        model = rebuild.build_model(card, root=root, allow=allow, where=where)
        checkpoint.load_weights(chosen.path, model)
        model.eval()
        dtype = _input_dtype(model)
        if example is None:
            takes = inputs.of_card(card, dtype, where)
        else:
            takes = inputs.of_example(inputs.read_example(example, dtype))
        expected = _answers(model, takes, where)
        if takes.recipes is None and expected[-1].ndim > 2:
            takes = takes.without_names()  # MLflow answers named columns with a table
        temporary, former = (target.with_name(f".{target.name}.{name}.tmp") for name in ("new", "former"))
        for leftover in (temporary, former):  # of a process that was killed: this one has the lock
            shutil.rmtree(leftover, ignore_errors=True)
        metric = (card["monitor"] or {}).get("metric")
        try:
            reason, found = flavors.save(
                temporary, CheckpointFiles(chosen.path, card["day"]), model, takes, expected, root
            )
            facts = {
                **{key: card[key] for key in ("uid", "day", "experiment", "step", "card_sha256")},
                "checkpoint": chosen.path.name,
                "metric": metric if metric in card["metrics"] else None,
                "value": card["metrics"].get(metric),
                "kind": "pt2" if reason is None else "code",
                "reason": reason,
                "difference": _largest_difference(found, expected, where),
                "made": day.now(card["timezone"]).isoformat(),
                "columns": takes.types,
            }
            manifest.write(temporary, facts)
            if target.exists():  # a crash between the two renames loses what can be made again
                os.rename(target, former)
            os.rename(temporary, target)
        except (OSError, PackageError):
            raise
        except Exception as error:  # whatever MLflow or the model's own code may raise
            raise PackageError(f"{where}: the packaged model cannot be used: {one_line(error)}") from error
        finally:
            for leftover in (temporary, former):
                shutil.rmtree(leftover, ignore_errors=True)
    return manifest.read(target)


# ---------------------------------------------------------------- what the checkpoint itself answers


def _input_dtype(model: nn.Module) -> np.dtype[Any]:
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    return np.dtype("float64" if parameter is not None and parameter.dtype == torch.float64 else "float32")


def _answers(model: nn.Module, takes: ModelInput, where: str) -> list[np.ndarray]:
    """The checkpoint's own answers to each of the batches."""
    return [_answer(model, takes, takes.rows[:size], where) for size in BATCHES]


def _answer(model: nn.Module, takes: ModelInput, rows: pd.DataFrame | np.ndarray, where: str) -> np.ndarray:
    from daypoint.models.served.code_model import encode

    if takes.recipes is not None:
        numbers = encode(rows, takes.recipes)
    else:
        numbers = rows.to_numpy(np.float32) if isinstance(rows, pd.DataFrame) else rows
    shape = list(numbers.shape)
    try:
        with torch.no_grad():
            answers = model(torch.tensor(numbers))
    except Exception as error:  # whatever the user's forward may raise
        raise PackageError(
            f"{where}: expected a model that takes {numbers.dtype} {shape}, found that it raises "
            f"{one_line(error)}; if it takes something else, give an example of it: --example FILE.npy"
        ) from error
    is_tensor = isinstance(answers, Tensor)
    if not is_tensor or answers.ndim == 0 or len(answers) != len(numbers):
        found = f"a tensor {list(answers.shape)}" if is_tensor else f"a {type(answers).__name__}"
        raise PackageError(
            f"{where}: expected one tensor [{len(numbers)}, …] for an input {shape}, found {found}; "
            "a served model has to answer each row with one row"
        )
    if answers.dtype not in (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32):
        raise PackageError(
            f"{where}: expected an answer of float64, float32, float16, int64 or int32, found {answers.dtype}; "
            "convert it in forward"
        )
    if takes.target is not None:
        answers = answers.double() * takes.target["std"] + takes.target["mean"]
    return answers.numpy()


def _largest_difference(found: list[np.ndarray], expected: list[np.ndarray], where: str) -> float:
    largest = 0.0
    for size, ours, theirs in zip(BATCHES, expected, found, strict=True):
        theirs = theirs.reshape(ours.shape) if theirs.size == ours.size else theirs
        fits = theirs.shape == ours.shape and np.array_equal(np.isnan(theirs), np.isnan(ours))
        difference = float(np.nanmax(np.abs(theirs - ours), initial=0.0)) if fits else np.inf
        if not difference <= TOLERANCE * (1 + float(np.nanmax(np.abs(ours), initial=0.0))):
            raise PackageError(
                f"{where}: expected the package to answer as the checkpoint does, found a difference of "
                f"{difference:.3g} in a batch of {size}; does its forward draw random numbers, or depend on the "
                "other rows of a batch?"
            )
        largest = max(largest, difference)
    return largest


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Import mlflow, and suppress what it and torch.export print and log: a failed export prints whole graphs."""
    store.load_mlflow()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logging.disable(before)
