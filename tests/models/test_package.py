"""A package answers as its checkpoint does, whoever loads it, and is refused when it would not."""

import json
import os
import subprocess
import sys

import mlflow
import numpy as np
import pandas as pd
import pytest
import saved_models
import torch
import yaml
from projects import clean_environment
from saved_models import USER_MODEL, prepared, save, table, write_user_model, zoo
from torch import nn

import daypoint
from daypoint.base import files
from daypoint.base.errors import PackageError
from daypoint.models import flavors, load
from daypoint.models import package as build
from daypoint.record import identity, manifest

# mlflow's and torch.export's own.
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project to stand in, whose own modules can be imported, and are forgotten afterwards."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").touch()
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    yield root
    for name in ("net", "layers"):
        sys.modules.pop(name, None)


def package(run, root, **options):
    """The package's directory and its manifest."""
    chosen = load.choose(str(run.directory), root / "outputs")
    facts = build.package(chosen, root=root, **options)
    return run.directory / "mlflow_model", facts


def answers(directory, rows):
    return np.asarray(mlflow.pyfunc.load_model(str(directory)).predict(rows))


def own(run, x):
    with torch.no_grad():
        return daypoint.load(run.directory)(x).numpy()


# ---------------------------------------------------------------- what it answers


@pytest.mark.parametrize("kind", ["CNN", "MLP", "Transformer", "Linear"])
def test_images_of_any_number_get_the_checkpoints_own_answers(root, kind):
    data = saved_models.digits()
    run = save(root, zoo(kind, data), data=data)
    directory, facts = package(run, root)
    x, _ = next(iter(data.val_loader()))
    assert (facts["kind"], facts["reason"]) == ("pt2", None)
    assert facts["difference"] <= 1e-5
    for size in (1, 2, 5, 64):
        np.testing.assert_allclose(
            answers(directory, x[:size].numpy()), own(run, x[:size]), rtol=1e-5, atol=1e-5
        )


def test_rows_of_numbers_are_named_columns(root):
    data = saved_models.linear()
    run = save(root, zoo("MLP", data), data=data)
    directory, facts = package(run, root)
    x, _ = next(iter(data.val_loader()))
    frame = pd.DataFrame(x.double().numpy(), columns=[f"x{i}" for i in range(16)])
    assert facts["kind"] == "pt2"
    np.testing.assert_allclose(answers(directory, frame), own(run, x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        answers(directory, frame[list(reversed(frame.columns))]), own(run, x), atol=1e-5
    )


def test_a_table_of_numbers_takes_the_raw_columns_and_missing_values(root, tmp_path):
    frame, data = table(tmp_path / "people.csv")
    run = save(root, zoo("MLP", data), data=data)
    directory, facts = package(run, root)
    assert facts["kind"] == "pt2"
    np.testing.assert_allclose(
        answers(directory, frame), own(run, prepared(data, frame)), rtol=1e-5, atol=1e-5
    )


def test_a_regression_on_a_table_answers_in_the_targets_units(root, tmp_path):
    frame, data = table(tmp_path / "prices.csv", regression=True)
    run = save(root, zoo("MLP", data), data=data)
    directory, facts = package(run, root)
    target = data.preparation["target"]
    expected = own(run, prepared(data, frame)).astype(np.float64) * target["std"] + target["mean"]
    assert facts["kind"] == "pt2"
    assert target["mean"] > 100_000
    np.testing.assert_allclose(answers(directory, frame), expected, rtol=0, atol=1e-3)


def test_a_table_with_text_is_prepared_by_code_around_a_program(root, tmp_path):
    frame, data = table(tmp_path / "people.csv", text=True)
    run = save(root, zoo("MLP", data), data=data)
    directory, facts = package(run, root)
    assert (facts["kind"], facts["reason"]) == ("code", "the table has columns of text")
    assert (directory / "artifacts" / "program.pt2").is_file()
    frame["member"] = frame["member"].astype(str)  # MLflow's doing: it makes no text of a truth value
    np.testing.assert_allclose(
        answers(directory, frame), own(run, prepared(data, frame)), rtol=1e-5, atol=1e-5
    )
    strange = frame.head(2).assign(port="Rome", member="true")
    same = frame.head(2).assign(port=None, member="True")
    np.testing.assert_array_equal(answers(directory, strange), answers(directory, same))


def test_a_column_too_far_from_zero_for_float32_is_prepared_in_float64(root, tmp_path):
    frame, data = table(tmp_path / "visits.csv", far=True)
    run = save(root, zoo("MLP", data), data=data)
    directory, facts = package(run, root)
    assert facts["kind"] == "code"
    assert "column 'when' varies too little" in facts["reason"]
    frame["when"] = frame["when"].astype(float)
    np.testing.assert_allclose(
        answers(directory, frame), own(run, prepared(data, frame)), rtol=1e-5, atol=1e-5
    )


def test_a_model_that_cannot_be_exported_is_rebuilt_and_the_reason_kept(root, capfd):
    write_user_model(root)
    run = save(root, USER_MODEL, config={"data": {"input_shape": [3]}})
    capfd.readouterr()
    directory, facts = package(run, root)
    assert capfd.readouterr() == ("", "")  # torch.export would print whole graphs
    assert facts["kind"] == "code"
    assert facts["reason"].startswith("torch.export: ")
    requirements = (directory / "requirements.txt").read_text()
    assert "hydra-core==" in requirements
    assert "daypoint" not in requirements
    for x in (torch.ones(2, 3), -torch.ones(5, 3)):
        frame = pd.DataFrame(x.numpy(), columns=["x0", "x1", "x2"])
        np.testing.assert_allclose(answers(directory, frame), own(run, x), atol=1e-6)


def test_an_image_model_that_cannot_be_exported_takes_arrays(root):
    write_user_model(root)
    run = save(root, USER_MODEL, config={"data": {"input_shape": [2, 3]}})
    directory, facts = package(run, root)
    assert facts["kind"] == "code"
    x = torch.ones(5, 2, 3)
    np.testing.assert_allclose(answers(directory, x.numpy()), own(run, x), atol=1e-6)


def test_two_models_whose_code_has_the_same_name_stay_two_in_one_process(root, tmp_path):
    directories, rows = [], pd.DataFrame(np.full((1, 3), 0.5), columns=["x0", "x1", "x2"])
    for threshold in (-1000.0, 1000.0):
        write_user_model(root, threshold)
        for name in ("net", "layers"):
            sys.modules.pop(name, None)
        torch.manual_seed(0)
        run = save(root, USER_MODEL, config={"data": {"input_shape": [3]}})
        directories.append(package(run, root)[0])
    loaded = [mlflow.pyfunc.load_model(str(directory)) for directory in directories]
    doubled, plain = (np.asarray(each.predict(rows)) for each in loaded)
    np.testing.assert_allclose(doubled, 2 * plain)
    np.testing.assert_allclose(np.asarray(loaded[0].predict(rows)), doubled)


# ---------------------------------------------------------------- what is in it


def test_the_signature_has_the_right_types_and_a_free_batch(root):
    data = saved_models.digits()
    directory, _ = package(save(root, zoo("MLP", data), data=data), root)
    signature = mlflow.models.get_model_info(str(directory)).signature
    (inputs,), (outputs,) = signature.inputs.inputs, signature.outputs.inputs
    assert (inputs.type, inputs.shape) == (np.dtype("float32"), (-1, 1, 8, 8))
    assert (outputs.type, outputs.shape) == (np.dtype("float32"), (-1, 10))


def test_the_signature_of_a_table_names_its_columns_and_their_types(root, tmp_path):
    _, data = table(tmp_path / "people.csv", text=True)
    directory, _ = package(save(root, zoo("MLP", data), data=data), root)
    signature = mlflow.models.get_model_info(str(directory)).signature
    types = {column.name: column.type.name for column in signature.inputs.inputs}
    assert types == {"age": "double", "fare": "double", "port": "string", "member": "string"}


def test_the_whole_card_is_in_the_metadata_with_its_seal(root, tmp_path):
    data = saved_models.digits()
    run = save(root, zoo("MLP", data), data=data)
    directory, _ = package(run, root)
    found = mlflow.models.get_model_info(str(directory)).metadata["daypoint_card"]
    (tmp_path / "card.json").write_text(json.dumps(found))
    assert identity.read_card(tmp_path / "card.json") == daypoint.load(run.directory).card


def test_the_requirements_are_few_and_those_of_this_environment(root):
    data = saved_models.digits()
    directory, _ = package(save(root, zoo("MLP", data), data=data), root)
    lines = (directory / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in lines] == ["mlflow", "torch", "numpy", "pandas"]
    assert f"torch=={torch.__version__.partition('+')[0]}" in lines


def test_the_example_beside_it_can_be_served(root, tmp_path):
    _, data = table(tmp_path / "people.csv", text=True)
    directory, _ = package(save(root, zoo("MLP", data), data=data), root)
    loaded = mlflow.pyfunc.load_model(str(directory))
    assert loaded.input_example.shape == (2, 4)
    assert np.asarray(loaded.predict(loaded.input_example)).shape == (2, 2)


def test_nothing_in_it_names_a_directory_of_this_machine(root, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write_user_model(root)
    run = save(root, USER_MODEL, config={"data": {"input_shape": [3]}})
    directory, _ = package(run, root)
    del tmp_path
    for path in directory.rglob("*"):
        if path.is_file() and path.name != "MLmodel":
            assert str(root).encode() not in path.read_bytes(), path
    described = yaml.safe_load((directory / "MLmodel").read_text())
    described["metadata"] = None  # the card says where the outputs of the training went
    assert str(root) not in str(described)
    assert "/tmp" not in str(described["flavors"])


def test_it_loads_where_there_is_a_gpu(root, monkeypatch):
    data = saved_models.digits()
    directory, _ = package(save(root, zoo("MLP", data), data=data), root)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert answers(directory, np.zeros((1, 1, 8, 8), np.float32)).shape == (1, 10)


def test_it_needs_neither_daypoint_nor_the_project(root, tmp_path):
    write_user_model(root)
    directory, _ = package(save(root, USER_MODEL, config={"data": {"input_shape": [3]}}), root)
    (root / "net.py").unlink()
    (root / "layers.py").unlink()
    script = (
        "import sys; sys.modules['daypoint'] = None\n"
        "import mlflow, pandas\n"
        f"m = mlflow.pyfunc.load_model({str(directory)!r})\n"
        "print(m.predict(pandas.DataFrame([[1.0, 2.0, 3.0]], columns=['x0', 'x1', 'x2'])).shape)\n"
    )
    environment = clean_environment(MLFLOW_ALLOW_PICKLE_DESERIALIZATION="false")
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "(1, 4)\n", done.stderr
    assert manifest.problems(directory) == []  # using it leaves no trace that would be an error


# ---------------------------------------------------------------- what is refused, and how it is made


def test_a_config_without_an_input_shape_asks_for_an_example(root):
    node = {"_target_": "torch.nn.Embedding", "num_embeddings": 5, "embedding_dim": 3}
    run = save(root, node)
    with pytest.raises(PackageError, match=r"expected data\.input_shape.*--example FILE\.npy"):
        package(run, root)
    np.save(root / "tokens.npy", np.array([[1, 2, 3, 4]]))
    directory, facts = package(run, root, example=root / "tokens.npy")
    assert facts["kind"] == "pt2"
    tokens = np.array([[0, 1, 4, 0], [2, 2, 2, 2], [3, 1, 4, 1]])
    np.testing.assert_allclose(answers(directory, tokens), own(run, torch.tensor(tokens)))


def test_an_example_that_was_pickled_is_refused(root):
    run = save(root, {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 1})
    np.save(root / "bad.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(PackageError, match=r"expected an array as numpy\.save writes it"):
        package(run, root, example=root / "bad.npy")


def test_an_example_that_does_not_fit_the_model_is_refused(root):
    run = save(
        root,
        {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 1},
        config={"data": {"input_shape": [7]}},
    )
    with pytest.raises(
        PackageError, match=r"expected a model that takes float32 \[1, 7\], found that it raises"
    ):
        package(run, root)


class OfTwo(nn.Module):
    """Takes batches of two only."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x.view(2, 3))


class Specialised(nn.Module):
    """Takes every batch, but torch.export would fix its size at 2."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return torch.stack([self.linear(row) for row in x])


class Restless(nn.Module):
    """Answers differently each time."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x) + torch.rand(len(x), 2)


@pytest.fixture
def own_class(root, monkeypatch):
    """Saves a run of a class of this file, with it allowed."""
    names = ["test_package.OfTwo", "test_package.Specialised", "test_package.Restless"]
    (root / "pyproject.toml").write_text(f"[tool.daypoint]\nallow = {names}\n")
    monkeypatch.setitem(sys.modules, "test_package", sys.modules[__name__])
    return lambda name: save(
        root, {"_target_": f"test_package.{name}"}, config={"data": {"input_shape": [3]}}
    )


def test_a_model_for_batches_of_one_size_only_is_refused(root, own_class):
    with pytest.raises(PackageError, match=r"takes float32 \[1, 3\], found that it raises"):
        package(own_class("OfTwo"), root)


def test_a_batch_size_that_export_would_fix_is_the_reason_for_code(root, own_class, monkeypatch):
    monkeypatch.setattr(
        flavors.dependencies, "_in_project", lambda name, _: None
    )  # this file is not the project's
    monkeypatch.setattr(flavors.dependencies, "requirement", lambda name: f"{name}==1")
    _, facts = package(own_class("Specialised"), root)
    assert facts["kind"] == "code"
    assert "size of batch" in facts["reason"] or facts["reason"].startswith("torch.export: ")


def test_a_package_that_answers_differently_is_refused(root, own_class):
    run = own_class("Restless")
    with pytest.raises(PackageError, match="expected the package to answer as the checkpoint does"):
        package(run, root)
    assert not (run.directory / "mlflow_model").exists()
    assert [path.name for path in run.directory.glob(".mlflow_model.*.tmp")] == []


def test_what_is_there_is_not_made_again(root):
    data = saved_models.digits()
    run = save(root, zoo("Linear", data), data=data)
    directory, facts = package(run, root)
    before = (directory / "MLmodel").stat().st_mtime_ns
    assert package(run, root)[1] == facts
    assert (directory / "MLmodel").stat().st_mtime_ns == before


def test_another_checkpoint_replaces_the_package(root):
    data = saved_models.digits()
    run = save(root, zoo("Linear", data), data=data)
    directory, facts = package(run, root)
    (directory / "daypoint.json").write_bytes(files.dumps({**facts, "card_sha256": "0" * 64}))
    assert package(run, root)[1]["card_sha256"] == facts["card_sha256"]
    assert manifest.problems(directory) == []
    assert [path.name for path in run.directory.glob(".mlflow_model.*.tmp")] == []


@pytest.mark.parametrize("name", ["data/model.pt2", "MLmodel", "requirements.txt"])
def test_a_changed_file_is_found_and_refused(root, name):
    data = saved_models.digits()
    run = save(root, zoo("Linear", data), data=data)
    directory, _ = package(run, root)
    with open(directory / name, "ab") as file:
        file.write(b" ")
    assert manifest.problems(directory) == [
        f"{directory / name}: the content has changed since it was written"
    ]
    with pytest.raises(PackageError, match=rf"{name}: the content has changed.*rm -r .* && daypoint package"):
        package(run, root)


def test_a_file_that_was_added_or_is_gone_is_found(root):
    data = saved_models.digits()
    directory, _ = package(save(root, zoo("Linear", data), data=data), root)
    (directory / "loader.py").write_text("import os")
    (directory / "conda.yaml").unlink()
    assert manifest.problems(directory) == [
        f"{directory}/conda.yaml: missing",
        f"{directory}/loader.py: not listed in the manifest",
    ]


def test_a_program_that_was_changed_is_not_opened(root, tmp_path):
    _, data = table(tmp_path / "people.csv", text=True)
    directory, _ = package(save(root, zoo("MLP", data), data=data), root)
    with open(directory / "artifacts" / "program.pt2", "ab") as file:
        file.write(b" ")
    with pytest.raises(RuntimeError, match="content has changed since the model was packaged; not loaded"):
        mlflow.pyfunc.load_model(str(directory))


def test_a_damaged_checkpoint_is_not_packaged(root):
    data = saved_models.digits()
    run = save(root, zoo("Linear", data), data=data)
    weights = next(run.directory.glob("checkpoints/step*/model_*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(daypoint.CheckpointError, match="content has changed"):
        package(run, root)


def test_packaging_leaves_every_random_state_as_it_was(root):
    data = saved_models.digits()
    run = save(root, zoo("MLP", data, dropout=0.5), data=data)
    torch.manual_seed(7)
    np.random.seed(7)
    expected = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(7)
    np.random.seed(7)
    package(run, root)
    assert (torch.rand(1).item(), np.random.rand()) == expected


def test_a_read_only_run_is_a_clear_error(root, monkeypatch):
    data = saved_models.digits()
    run = save(root, zoo("Linear", data), data=data)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(PackageError, match="mlflow_model: cannot be written: Permission denied"):
        package(run, root)
