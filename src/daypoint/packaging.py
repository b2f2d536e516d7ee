"""Packaging: a checkpoint as an MLflow model in its run's directory, which runs without daypoint and the user's code.

The model is built from the identity card and the weights alone, never from a live object. It becomes a pt2 program
(torch.export) with a free batch size; a table of numbers is prepared inside of it. Where that cannot be, it becomes a
model from code (`daypoint.served`), and the reason is kept. There is no pickle in either. Before anything has its final name
the saved model is loaded by MLflow, and asked in batches of 1, 2, 3 and 7 rows; other answers than the checkpoint's own are
refused.

What is taken: `daypoint.intake`. What is answered: the model's own output, `predictions`, one for each row; of a regression on a
table in the target's own units. This module knows no MLflow store. One number: SECONDS_PLACEHOLDER
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
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

from daypoint import checkpoint, day, files, intake, luggage, manifest, rebuild, shelf, store
from daypoint import served as served_directory
from daypoint.day import CheckpointFiles, PackageFiles
from daypoint.errors import PackageError
from daypoint.intake import BATCHES, Intake
from daypoint.model import Chosen

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
        PackageError: the model cannot be packaged, its package answers differently, or the package that is there was changed.
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
            takes = intake.of_card(card, dtype, where)
        else:
            takes = intake.of_example(intake.read_example(example, dtype))
        expected = _answers(model, takes, where)
        if takes.recipes is None and expected[-1].ndim > 2:
            takes = takes.without_names()  # MLflow answers named columns with a table
        for leftover in target.parent.glob(
            f".{target.name}.*.tmp"
        ):  # of one that was killed: we have the lock
            shutil.rmtree(leftover, ignore_errors=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        metadata = {
            "daypoint_card": orjson.loads(CheckpointFiles(chosen.path, card["day"]).card.read_bytes())
        }
        try:
            reason = _why_not_pt2(takes) or _try_pt2(temporary, model, takes, expected, metadata)
            if reason is not None:
                shutil.rmtree(temporary, ignore_errors=True)
                _save_code(temporary, model, takes, expected, metadata, card, root)
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


def _answers(model: nn.Module, takes: Intake, where: str) -> list[np.ndarray]:
    """The checkpoint's own answers to each of the batches."""
    return [_answer(model, takes, takes.rows[:size], where) for size in BATCHES]


def _answer(model: nn.Module, takes: Intake, rows: pd.DataFrame | np.ndarray, where: str) -> np.ndarray:
    from daypoint.served.code_model import encode

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
            f"{where}: expected a model that takes {numbers.dtype} {shape}, found that it raises {_one_line(error)}; "
            "if it takes something else, give an example of it: --example FILE.npy"
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


def _predictions(directory: Path, takes: Intake) -> list[np.ndarray]:
    """What the saved model answers, asked as MLflow asks it."""
    from mlflow.pyfunc import load_model

    loaded = load_model(str(directory), suppress_warnings=True)
    return [np.asarray(loaded.predict(takes.rows[:size])) for size in BATCHES]


def _saved_answers(directory: Path, takes: Intake, where: str) -> list[np.ndarray]:
    try:
        return _predictions(directory, takes)
    except Exception as error:  # whatever MLflow or the model's own code may raise
        raise PackageError(f"{where}: the packaged model cannot be used: {_one_line(error)}") from error


def _largest_difference(found: list[np.ndarray], expected: list[np.ndarray], where: str) -> float:
    largest = 0.0
    for size, ours, theirs in zip(BATCHES, expected, found, strict=True):
        theirs = theirs.reshape(ours.shape) if theirs.size == ours.size else theirs
        fits = theirs.shape == ours.shape and np.array_equal(np.isnan(theirs), np.isnan(ours))
        difference = float(np.nanmax(np.abs(theirs - ours), initial=0.0)) if fits else np.inf
        if not difference <= TOLERANCE * (1 + float(np.nanmax(np.abs(ours), initial=0.0))):
            raise PackageError(
                f"{where}: expected the package to answer as the checkpoint does, found a difference of {difference:.3g} in a "
                f"batch of {size}; does its forward draw random numbers, or depend on the other rows of a batch?"
            )
        largest = max(largest, difference)
    return largest


# ---------------------------------------------------------------- the two formats


class FromColumns(nn.Module):
    """A model that takes a DataFrame as MLflow hands it over: float32 [rows, columns], in any memory layout.

    The columns of a table come as the file had them, NaN where a value is missing.
    """

    def __init__(self, model: nn.Module, takes: Intake) -> None:
        super().__init__()
        self.model = model
        self.target = takes.target
        self.register_buffer("order", torch.arange(takes.rows.shape[1]))
        self.is_raw = takes.recipes is not None
        for name in ("mean", "std") if takes.recipes is not None else ():
            values = [recipe[name] for recipe in (takes.recipes or {}).values()]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        # Row by row in memory from here on: torch.export makes programs that refuse any layout but the one they saw.
        x = x.index_select(1, self.order)
        if self.is_raw:
            scaled = (x.double() - self.mean) / self.std
            x = torch.where(scaled.isnan(), torch.zeros_like(scaled), scaled).float()
        answers = self.model(x)
        if self.target is None:
            return answers
        return answers.double() * self.target["std"] + self.target["mean"]


def _why_not_pt2(takes: Intake) -> str | None:
    if takes.has_text:
        return "the table has columns of text"
    if (name := takes.far_column) is not None:
        return f"column {name!r} varies too little around its mean for the float32 that a pt2 model is handed"
    return None


def _try_pt2(
    directory: Path, model: nn.Module, takes: Intake, expected: list[np.ndarray], metadata: dict[str, Any]
) -> str | None:
    """Save a pt2 program. Why it cannot be one, in words; None when it is."""
    import mlflow.pytorch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    whole, rows = model, takes.rows
    if isinstance(rows, pd.DataFrame):
        whole, rows = FromColumns(model, takes).eval(), np.ascontiguousarray(rows.to_numpy(np.float32))
    tensors = Schema([TensorSpec(rows.dtype, (-1, *rows.shape[1:]))])
    try:
        mlflow.pytorch.save_model(
            whole,
            str(directory),
            serialization_format="pt2",
            input_example=np.ascontiguousarray(rows[:2]),  # of one row the batch size would be fixed at 1
            signature=ModelSignature(tensors, _output(expected)),
            pip_requirements=[luggage.requirement(name) for name in ("mlflow", "torch", "numpy", "pandas")],
            metadata=metadata,
        )
    except OSError:
        raise
    except Exception as error:  # torch.export has no error of its own that all of its errors are
        return f"torch.export: {_one_line(error)}"
    _finish(directory, takes, expected)
    try:
        _predictions(directory, takes)
    except Exception as error:
        return f"torch.export made a program that does not take every size of batch: {_one_line(error)}"
    return None


def _save_code(
    directory: Path,
    model: nn.Module,
    takes: Intake,
    expected: list[np.ndarray],
    metadata: dict[str, Any],
    card: dict[str, Any],
    root: Path,
) -> None:
    """Save a model from code: around an exported program where there can be one, else around weights and hyperparameters."""
    import mlflow.pyfunc

    names = ["mlflow", "torch", "numpy", "pandas"]
    with tempfile.TemporaryDirectory(prefix="daypoint-") as scratch:
        data, plan_file, code = (
            Path(scratch, "program.pt2"),
            Path(scratch, "plan.json"),
            Path(scratch, "code"),
        )
        artifacts = {"plan": str(plan_file)}
        plan: dict[str, Any] = {"columns": takes.recipes, "target": takes.target}
        required: list[str] = []
        if takes.recipes is not None and _export(model, takes, data):
            artifacts["program"] = str(data)
        else:
            data = Path(scratch, "weights.safetensors")
            artifacts["weights"] = str(data)
            plan["model"] = card["config"].get("model")
            inside, required = luggage.collect(plan["model"], root)
            if inside:
                luggage.copy(inside, code)
                artifacts["code"] = str(code)
            names += ["hydra-core", "safetensors"]
            _save_weights(model, data)
        plan["sha256"] = manifest.sha256(data)
        plan_file.write_bytes(files.dumps(plan))
        script = Path(served_directory.__file__).with_name("code_model.py")
        mlflow.pyfunc.save_model(
            str(directory),
            python_model=str(script),
            artifacts=artifacts,
            pip_requirements=list(dict.fromkeys([*map(luggage.requirement, names), *required])),
            metadata=metadata,
        )
    _finish(directory, takes, expected)


def _export(model: nn.Module, takes: Intake, path: Path) -> bool:
    """Save the exported program of a model that takes prepared rows. False: it cannot be exported."""
    from daypoint.served.code_model import encode

    example = torch.tensor(encode(takes.rows[:2], takes.recipes or {}))
    try:
        program = torch.export.export(model, (example,), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
        with torch.no_grad():
            for size in BATCHES:
                program.module()(example[:1].expand(size, -1))
    except Exception:  # as in _try_pt2; the model is rebuilt from its code then
        return False
    torch.export.save(program, path)
    return True


def _save_weights(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    weights = model.state_dict()
    if odd := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
        raise PackageError(f"expected a model whose state is tensors, found {', '.join(odd)}, which are none")
    save_file({name: value.detach().clone().contiguous() for name, value in weights.items()}, path)


def _output(expected: list[np.ndarray]) -> Any:
    from mlflow.types import Schema, TensorSpec

    return Schema([TensorSpec(expected[-1].dtype, (-1, *expected[-1].shape[1:]))])


def _finish(directory: Path, takes: Intake, expected: list[np.ndarray]) -> None:
    """What MLflow does not put into its MLmodel by itself: named columns, examples, the device."""
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    paths = PackageFiles(directory)
    model = Model.load(str(paths.model))
    flavor = model.flavors["python_function"]
    if flavor.get("loader_module") == "mlflow.pytorch":
        flavor["config"] = {"device": "cpu"}  # or MLflow refuses to load it where there is a GPU
    # Names in the package, not the places on this machine that they were copied from.
    for artifact in flavor.get("artifacts", {}).values():
        artifact["uri"] = artifact["path"]
    if "model_code_path" in flavor:
        flavor["model_code_path"] = Path(flavor["model_code_path"]).name
    info = {"artifact_path": paths.example.name, "serving_input_path": paths.serving_example.name}
    shown = takes.rows[:2]
    if isinstance(shown, pd.DataFrame):
        # A pt2 model has to be saved with a tensor signature, but MLflow turns named columns into that tensor too.
        inputs = Schema([ColSpec(kind, name) for name, kind in (takes.types or {}).items()])
        split = {"columns": list(shown.columns), "data": shown.to_numpy(object).tolist()}
        model.saved_input_example_info = {**info, "type": "dataframe", "pandas_orient": "split"}
        paths.example.write_bytes(files.dumps(split))
        paths.serving_example.write_bytes(files.dumps({"dataframe_split": split}))
    else:
        inputs = Schema([TensorSpec(shown.dtype, (-1, *shown.shape[1:]))])
        model.saved_input_example_info = {**info, "type": "ndarray"}
        values = (shown.astype(np.float64).round(6) if shown.dtype.kind == "f" else shown).tolist()
        paths.example.write_bytes(files.dumps(values, indent=False))
        paths.serving_example.write_bytes(files.dumps({"inputs": values}, indent=False))
    model.signature = ModelSignature(inputs, _output(expected))
    model.save(str(paths.model))


# ---------------------------------------------------------------- around it


def _commit(temporary: Path, target: Path) -> None:
    """Give it its name, all of it on the disk. A crash between the two renames loses a package, which can be made again."""
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
