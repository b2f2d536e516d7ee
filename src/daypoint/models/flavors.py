"""The two forms of a packaged model: a pt2 program, or code with data. There is no pickle in either.

A pt2 program (torch.export) needs nothing but torch. Code (`daypoint.models.served`) is for rows that have to be
prepared by pandas and for models that cannot be exported; it is handed an exported program where there can be
one. Both take a batch of any size, and run on the CPU. This module decides nothing about checkpoints and
days. One number: the zoo's MLP is a package of 0.13 MB, of which its weights are 0.10.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from daypoint.base import files
from daypoint.base.day import PackageFiles
from daypoint.base.errors import PackageError
from daypoint.models import dependencies
from daypoint.models import served as served_directory
from daypoint.models.inputs import BATCHES, ModelInput
from daypoint.record import documents


class FromColumns(nn.Module):
    """A model that takes a DataFrame as MLflow hands it over: float32 [rows, columns], in any memory layout.

    The columns of a table come as the file had them, NaN where a value is missing.
    """

    def __init__(self, model: nn.Module, takes: ModelInput) -> None:
        super().__init__()
        self.model = model
        self.target = takes.target
        self.register_buffer("order", torch.arange(takes.rows.shape[1]))
        self.is_raw = takes.recipes is not None
        for name in ("mean", "std") if takes.recipes is not None else ():
            values = [recipe[name] for recipe in (takes.recipes or {}).values()]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        # Row by row in memory from here on: torch.export's programs may refuse a layout that they did not see.
        x = x.index_select(1, self.order)
        if self.is_raw:
            scaled = (x.double() - self.mean) / self.std
            x = torch.where(scaled.isnan(), torch.zeros_like(scaled), scaled).float()
        answers = self.model(x)
        if self.target is None:
            return answers
        return answers.double() * self.target["std"] + self.target["mean"]


def why_not_pt2(takes: ModelInput) -> str | None:
    """What keeps a model of these inputs from being a pt2 program, in words; None if nothing does."""
    if takes.has_text:
        return "the table has columns of text"
    if (name := takes.far_column) is not None:
        return f"column {name!r} varies too little around its mean for the float32 that a pt2 model is handed"
    return None


def save_pt2(
    directory: Path, model: nn.Module, takes: ModelInput, expected: list[np.ndarray], metadata: dict[str, Any]
) -> str | None:
    """Save a pt2 program.

    Args:
        directory: where; it is made.
        expected: the checkpoint's own answers to each of the batches.
        metadata: plain data for the MLmodel.

    Returns:
        Why it cannot be one, in words; None when it is.
    """
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
            pip_requirements=[
                dependencies.requirement(name) for name in ("mlflow", "torch", "numpy", "pandas")
            ],
            metadata=metadata,
        )
    except OSError:
        raise
    except Exception as error:  # torch.export has no error of its own that all of its errors are
        return f"torch.export: {first_line(error)}"
    _finish(directory, takes, expected)
    try:
        predictions(directory, takes)
    except Exception as error:
        return f"torch.export made a program that does not take every size of batch: {first_line(error)}"
    return None


def save_code(
    directory: Path,
    model: nn.Module,
    takes: ModelInput,
    expected: list[np.ndarray],
    metadata: dict[str, Any],
    node: Any,
    root: Path,
) -> None:
    """Save a model from code: around an exported program where there can be one, else around its weights.

    Args:
        node: the node of the config that builds the model.
        root: the project, whose code may be copied. The other ones as in `save_pt2`.

    Raises:
        PackageError: the model's state is not tensors alone.
    """
    import mlflow.pyfunc

    names = ["mlflow", "torch", "numpy", "pandas"]
    with tempfile.TemporaryDirectory(prefix="daypoint-") as scratch:
        data, code = Path(scratch, "program.pt2"), Path(scratch, "code")
        plan_file = Path(scratch, "plan.json")
        artifacts = {"plan": str(plan_file)}
        plan: dict[str, Any] = {"columns": takes.recipes, "target": takes.target}
        required: list[str] = []
        if takes.recipes is not None and _export(model, takes, data):
            artifacts["program"] = str(data)
        else:
            data = Path(scratch, "weights.safetensors")
            artifacts["weights"] = str(data)
            plan["model"] = node
            inside, required = dependencies.collect(node, root)
            if inside:
                dependencies.copy(inside, code)
                artifacts["code"] = str(code)
            names += ["hydra-core", "safetensors"]
            _save_weights(model, data)
        plan["sha256"] = documents.sha256(data)
        plan_file.write_text(json.dumps(plan, ensure_ascii=False), encoding="utf-8")
        script = Path(served_directory.__file__).with_name("code_model.py")
        mlflow.pyfunc.save_model(
            str(directory),
            python_model=str(script),
            artifacts=artifacts,
            pip_requirements=list(dict.fromkeys([*map(dependencies.requirement, names), *required])),
            metadata=metadata,
        )
    _finish(directory, takes, expected)


def _export(model: nn.Module, takes: ModelInput, path: Path) -> bool:
    """Save the exported program of a model that takes prepared rows. False: it cannot be exported."""
    from daypoint.models.served.code_model import encode

    example = torch.tensor(encode(takes.rows[:2], takes.recipes or {}))
    try:
        program = torch.export.export(model, (example,), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
        with torch.no_grad():
            for size in BATCHES:
                program.module()(example[:1].repeat(size, 1))
    except Exception:  # as in save_pt2; the model is rebuilt from its code then
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


def _finish(directory: Path, takes: ModelInput, expected: list[np.ndarray]) -> None:
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
        # A pt2 model has to be saved with a tensor signature, but takes named columns: MLflow makes the tensor.
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


def predictions(directory: Path, takes: ModelInput) -> list[np.ndarray]:
    """What the saved model answers, asked as MLflow asks it."""
    from mlflow.pyfunc import load_model

    usual, sys.dont_write_bytecode = (
        sys.dont_write_bytecode,
        True,
    )  # it would name directories of this machine
    try:
        loaded = load_model(str(directory), suppress_warnings=True)
        return [np.asarray(loaded.predict(takes.rows[:size])) for size in BATCHES]
    finally:
        sys.dont_write_bytecode = usual


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
