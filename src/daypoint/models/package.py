"""Packaging: a checkpoint as an MLflow model, which runs without daypoint and without the user's code.

The model is built from the identity card and the weights alone, never from a live object. It becomes a pt2
program (torch.export) with a free batch size; a table of numbers is prepared inside of it. Where that cannot
be, it becomes a model from code (`daypoint.models.served`), and the reason is kept. There is no pickle in either.
Before anything has its final name the saved model is loaded by MLflow, and asked in batches of 1, 2, 3 and 7
rows; other answers than the checkpoint's own are refused.

What is taken: `daypoint.models.inputs`. What is answered: the model's own output, `predictions`, one for each row;
of a regression on a table in the target's own units. This module knows no MLflow store. One number: 0.1 to
0.8 s of CPU for a model of the zoo, and 2 s more for torch.export's first call in a process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import torch
from filelock import FileLock
from torch import Tensor, nn

from daypoint.base import day, files
from daypoint.base.day import CheckpointFiles
from daypoint.base.errors import PackageError
from daypoint.checkpoints import checkpoint
from daypoint.models import flavors, inputs, rebuild
from daypoint.models.flavors import first_line
from daypoint.models.inputs import BATCHES, ModelInput
from daypoint.models.load import Chosen
from daypoint.record import manifest, shelf
from daypoint.tracking import store

TOLERANCE = 1e-5
"""Largest difference to the checkpoint's own answers, as a share of 1 + the largest answer."""


def package(
    chosen: Chosen,
    *,
    root: Path,
    example: Path | None = None,
    allow: Iterable[str] = (),
) -> dict[str, Any]:
    """Make the package of a checkpoint, `mlflow_model/` in its run's directory, unless it is there.

    Args:
        chosen: from `daypoint.model.choose`.
        root: the project whose allow-list counts and whose code may be copied.
        example: a .npy file with inputs [batch, …], for a config without data.input_shape.
        allow: more modules or dotted paths that the card may name.

    Returns:
        The manifest.

    Raises:
        PackageError: the model cannot be packaged, its package answers differently, or the one that is there was
            changed.
        CheckpointError: the checkpoint is damaged, or its model cannot be built.
    """
    if chosen.run is None:
        raise PackageError(
            f"{chosen.path}: expected a checkpoint in its run's directory, found a copy of one"
        )
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
    chosen: Chosen,
    card: dict[str, Any],
    target: Path,
    root: Path,
    example: Path | None,
    allow: Iterable[str],
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
        # Those of one that was killed: we have the lock.
        for leftover in target.parent.glob(f".{target.name}.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        card_file = CheckpointFiles(chosen.path, card["day"]).card
        metadata = {"daypoint_card": orjson.loads(card_file.read_bytes())}
        try:
            reason = flavors.why_not_pt2(takes)
            if reason is None:
                reason = flavors.save_pt2(temporary, model, takes, expected, metadata)
            if reason is not None:
                shutil.rmtree(temporary, ignore_errors=True)
                node = card["config"]["model"]
                flavors.save_code(temporary, model, takes, expected, metadata, node, root)
            difference = _largest_difference(_saved_answers(temporary, takes, where), expected, where)
            facts = {**_facts(chosen, card, reason, difference), "columns": takes.types}
            manifest.write(temporary, facts)
            _commit(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return manifest.read(target)


def _facts(chosen: Chosen, card: dict[str, Any], reason: str | None, difference: float) -> dict[str, Any]:
    metric = (card["monitor"] or {}).get("metric")
    return {
        "uid": card["uid"],
        "day": card["day"],
        "experiment": card["experiment"],
        "checkpoint": chosen.path.name,
        "step": card["step"],
        "card_sha256": card["card_sha256"],
        "metric": metric if metric in card["metrics"] else None,
        "value": card["metrics"].get(metric),
        "kind": "pt2" if reason is None else "code",
        "reason": reason,
        "difference": difference,
        "made": day.now(card["timezone"]).isoformat(),
    }


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
            f"{first_line(error)}; if it takes something else, give an example of it: --example FILE.npy"
        ) from error
    if not isinstance(answers, Tensor) or answers.ndim == 0 or len(answers) != len(numbers):
        found = (
            f"a tensor {list(answers.shape)}"
            if isinstance(answers, Tensor)
            else f"a {type(answers).__name__}"
        )
        raise PackageError(
            f"{where}: expected one tensor [{len(numbers)}, …] for an input {shape}, found {found}; "
            "a served model answers each row with one row"
        )
    if answers.dtype not in (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32):
        raise PackageError(
            f"{where}: expected an answer of float64, float32, float16, int64 or int32, found {answers.dtype}; "
            "convert it in forward"
        )
    if takes.target is not None:
        answers = answers.double() * takes.target["std"] + takes.target["mean"]
    return answers.numpy()


def _saved_answers(directory: Path, takes: ModelInput, where: str) -> list[np.ndarray]:
    try:
        return flavors.predictions(directory, takes)
    except Exception as error:  # whatever MLflow or the model's own code may raise
        raise PackageError(f"{where}: the packaged model cannot be used: {first_line(error)}") from error


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


# ---------------------------------------------------------------- around it


def _commit(temporary: Path, target: Path) -> None:
    """Give it its name, all of it on the disk. A crash between two renames loses what can be made again."""
    for path in temporary.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        else:
            files.sync_directory(path)
    files.sync_directory(temporary)
    if target.exists():
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        os.rename(target, aside)
        os.rename(temporary, target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(temporary, target)
    files.sync_directory(target.parent)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """mlflow at hand, and what it and torch.export say on the way not said."""
    store.load_mlflow()
    before = logging.root.manager.disable
    # A failed export logs whole graphs; what it says is kept as the reason. Some of it is printed.
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.ExitStack() as stack:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
