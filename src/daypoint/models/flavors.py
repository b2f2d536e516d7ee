"""Saves a model in one of the two forms that a package can have: a pt2 program, or code with data.

A pt2 program (torch.export) needs nothing but torch. Code (`daypoint.models.served`) is for rows that pandas has to prepare and
for models that cannot be exported; it gets an exported program where that is possible. Both take a batch of any size, run on
the CPU, and contain no pickle. This module knows nothing of checkpoints and days.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pandas as pd
import torch
from torch import Tensor, nn

from daypoint.base import files
from daypoint.base.day import CheckpointFiles, PackageFiles
from daypoint.base.errors import PackageError
from daypoint.models import dependencies
from daypoint.models import served as served_directory
from daypoint.models.inputs import BATCHES, ModelInput
from daypoint.record import documents, source
from daypoint.tracking.sync import one_line

if TYPE_CHECKING:
    from mlflow.types import Schema

_NEEDED = ("mlflow", "torch", "numpy", "pandas")


class FromColumns(nn.Module):
    """A model that takes a DataFrame as MLflow passes it: float32 [rows, columns], in any memory layout.

    The columns of a table come as in the file, with NaN where a value is missing.
    """

    def __init__(self, model: nn.Module, takes: ModelInput) -> None:
        super().__init__()
        self.model = model
        self.target = takes.target
        self.register_buffer("order", torch.arange(takes.rows.shape[1]))
        self.is_raw = takes.recipes is not None
        for name in ("mean", "std"):
            values = [recipe[name] for recipe in (takes.recipes or {}).values()]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        # Row by row in memory from here on: an exported program may refuse a memory layout that it was not made with.
        x = x.index_select(1, self.order)
        if self.is_raw:
            scaled = (x.double() - self.mean) / self.std
            x = torch.where(scaled.isnan(), torch.zeros_like(scaled), scaled).float()
        answers = self.model(x)
        if self.target is None:
            return answers
        return answers.double() * self.target["std"] + self.target["mean"]


def save(
    directory: Path,
    checkpoint: CheckpointFiles,
    model: nn.Module,
    takes: ModelInput,
    expected: list[np.ndarray],
    root: Path,
) -> tuple[str | None, list[np.ndarray]]:
    """Save a model as a pt2 program, or from code where that is not possible.

    Args:
        directory: where; it must not exist.
        checkpoint: whose identity card goes into the MLmodel.
        model: as the checkpoint has it.
        expected: the checkpoint's own answers to each of the batches.
        root: the project, whose code may be copied.

    Returns:
        Why it is not a pt2 program, None if it is one; what the saved model answers to each of the batches.
    """
    card = orjson.loads(files.read_bytes(checkpoint.card))
    reason = takes.why_code
    if reason is None:
        try:
            _save_pt2(directory, model, takes, expected, card)
            return None, _predictions(directory, takes)
        except OSError:
            raise
        except Exception as error:  # torch.export has no base class for its errors
            reason = f"torch.export: {one_line(error)}"
            shutil.rmtree(directory, ignore_errors=True)
    _save_code(directory, model, takes, expected, card, checkpoint.weights, root)
    return reason, _predictions(directory, takes)


def _save_pt2(
    directory: Path, model: nn.Module, takes: ModelInput, expected: list[np.ndarray], card: dict[str, Any]
) -> None:
    import mlflow.pytorch
    from mlflow.models import ModelSignature

    whole, rows = model, takes.rows
    if isinstance(rows, pd.DataFrame):
        whole, rows = FromColumns(model, takes).eval(), np.ascontiguousarray(rows.to_numpy(np.float32))
    mlflow.pytorch.save_model(
        whole,
        str(directory),
        serialization_format="pt2",
        input_example=np.ascontiguousarray(rows[:2]),  # of one row the batch size would be fixed at 1
        signature=ModelSignature(_tensors(rows), _tensors(expected[-1])),
        pip_requirements=[dependencies.requirement(name) for name in _NEEDED],
        metadata={"daypoint_card": card},
    )
    _finish(directory, takes, expected)


def _save_code(
    directory: Path,
    model: nn.Module,
    takes: ModelInput,
    expected: list[np.ndarray],
    card: dict[str, Any],
    weights: Path,
    root: Path,
) -> None:
    """Save a model from code: around an exported program where that is possible, else around its weights."""
    import mlflow.pyfunc

    required = list(map(dependencies.requirement, _NEEDED))
    with tempfile.TemporaryDirectory(prefix="daypoint-") as scratch:
        data, code = Path(scratch, "program.pt2"), Path(scratch, "code")
        plan_file = Path(scratch, "plan.json")
        artifacts = {"plan": str(plan_file)}
        plan: dict[str, Any] = {"columns": takes.recipes, "target": takes.target}
        if takes.recipes is not None and _export(model, takes, data):
            artifacts["program"] = str(data)
        else:
            data = weights
            artifacts["weights"] = str(data)
            plan["model"] = card["config"]["model"]
            if changed := source.differences(card.get("code") or {}, root):
                raise PackageError(
                    f"the model cannot be exported, and the files of its class, which would go into the package, are not what "
                    f"it was trained with: {'; '.join(map(str, changed))}; restore them"
                )
            inside, more = dependencies.collect(plan["model"], root)
            if inside:
                dependencies.copy(inside, code)
                artifacts["code"] = str(code)
            required += [*map(dependencies.requirement, ("hydra-core", "safetensors")), *more]
        plan["sha256"] = documents.sha256(data)
        plan_file.write_text(json.dumps(plan, ensure_ascii=False), encoding="utf-8")
        script = Path(served_directory.__file__).with_name("code_model.py")
        mlflow.pyfunc.save_model(
            str(directory),
            python_model=str(script),
            artifacts=artifacts,
            pip_requirements=list(dict.fromkeys(required)),
            metadata={"daypoint_card": card},
        )
    _finish(directory, takes, expected)


def _export(model: nn.Module, takes: ModelInput, path: Path) -> bool:
    """Export a model that takes prepared rows, and save the program. False: it cannot be exported."""
    from daypoint.models.served.code_model import encode

    example = torch.tensor(encode(takes.rows[:2], takes.recipes or {}))
    try:
        program = torch.export.export(model, (example,), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
        with torch.no_grad():
            for size in BATCHES:
                program.module()(example[:1].repeat(size, 1))
    except Exception:  # as in `save`; the model is rebuilt from its code then
        return False
    torch.export.save(program, path)
    return True


def _tensors(like: np.ndarray) -> Schema:
    """The MLflow schema of arrays like this one, with any number of rows."""
    from mlflow.types import Schema, TensorSpec

    return Schema([TensorSpec(like.dtype, (-1, *like.shape[1:]))])


def _finish(directory: Path, takes: ModelInput, expected: list[np.ndarray]) -> None:
    """Add what MLflow does not put into its MLmodel by itself: named columns, examples, the device."""
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema

    paths = PackageFiles(directory)
    model = Model.load(str(paths.model))
    flavor = model.flavors["python_function"]
    if flavor.get("loader_module") == "mlflow.pytorch":
        flavor["config"] = {"device": "cpu"}  # otherwise MLflow refuses to load it where there is a GPU
    # Names in the package, not the places on this machine that they were copied from.
    for artifact in flavor.get("artifacts", {}).values():
        artifact["uri"] = artifact["path"]
    if "model_code_path" in flavor:
        flavor["model_code_path"] = Path(flavor["model_code_path"]).name
    info = {"artifact_path": paths.example.name, "serving_input_path": paths.serving_example.name}
    shown = takes.rows[:2]
    if isinstance(shown, pd.DataFrame):
        # A pt2 model has to be saved with a tensor signature, but takes named columns: MLflow makes the tensor.
        inputs = Schema([ColSpec(kind, name) for name, kind in (takes.types or {}).items()])
        split = {"columns": list(shown.columns), "data": shown.to_numpy(object).tolist()}
        model.saved_input_example_info = {**info, "type": "dataframe", "pandas_orient": "split"}
        paths.example.write_bytes(files.dumps(split))
        paths.serving_example.write_bytes(files.dumps({"dataframe_split": split}))
    else:
        inputs = _tensors(shown)
        model.saved_input_example_info = {**info, "type": "ndarray"}
        values = (shown.astype(np.float64).round(6) if shown.dtype.kind == "f" else shown).tolist()
        paths.example.write_bytes(files.dumps(values, indent=False))
        paths.serving_example.write_bytes(files.dumps({"inputs": values}, indent=False))
    model.signature = ModelSignature(inputs, _tensors(expected[-1]))
    model.save(str(paths.model))


def _predictions(directory: Path, takes: ModelInput) -> list[np.ndarray]:
    """What the saved model answers when MLflow loads it."""
    from mlflow.pyfunc import load_model

    usual = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # cached bytecode would contain paths of this machine
    try:
        loaded = load_model(str(directory), suppress_warnings=True)
        return [np.asarray(loaded.predict(takes.rows[:size])) for size in BATCHES]
    finally:
        sys.dont_write_bytecode = usual
