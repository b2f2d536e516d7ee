"""The user's own file: which task, what becomes of each kind of column, and what is refused."""

import gzip
import json
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
from zoo_parts import assert_same, batches

from daypoint.base.errors import ConfigError
from daypoint.hydra import overrides
from daypoint.zoo.columns import typed
from daypoint.zoo.data import split_rows
from daypoint.zoo.table import Table


def people(rows=60):
    """A table with every kind of column."""
    rng = np.random.default_rng(0)
    age = rng.integers(20, 60, rows)
    return pd.DataFrame(
        {
            "age": age,
            "height": np.where(np.arange(rows) % 7 == 0, np.nan, rng.normal(170, 10, rows)),
            "city": rng.choice(["Rome", "Oslo", "Lima"], rows),
            "member": rng.random(rows) < 0.5,
            "income": age * 1000.0 + rng.normal(0, 10, rows),
            "level": rng.integers(0, 3, rows),
        }
    )


def save(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return str(path)


@pytest.fixture(params=["csv", "tsv", "parquet"])
def file(request, tmp_path):
    return save(people(), tmp_path / f"people.{request.param}")


def test_a_float_target_is_a_regression(file):
    data = Table(file, target="income")
    x, y = next(iter(data.train_loader(0)))
    assert (data.task, data.outputs, data.classes) == ("regression", 1, None)
    # age, height, three cities, two kinds of member, level
    assert data.input_shape == (8,) == tuple(x.shape[1:])
    assert (y.shape, y.dtype, x.dtype) == ((48, 1), torch.float32, torch.float32)


def test_a_text_target_is_a_classification(file):
    data = Table(file, target="city")
    _, y = next(iter(data.train_loader(0)))
    assert (data.task, data.outputs, data.classes) == ("classification", 3, ["Lima", "Oslo", "Rome"])
    assert (y.shape, y.dtype) == ((48,), torch.int64)


def test_a_true_false_target_is_a_classification(file):
    assert Table(file, target="member").classes == ["False", "True"]


def test_an_integer_target_with_few_values_is_a_classification(file):
    assert Table(file, target="level").classes == ["0", "1", "2"]


def test_an_integer_target_with_many_values_is_a_regression(file):
    assert Table(file, target="age").task == "regression"


def test_the_task_can_be_given(file):
    assert Table(file, target="level", task="regression").outputs == 1
    assert Table(file, target="level", task="auto").outputs == 3


@pytest.mark.parametrize(("distinct", "task"), [(20, "classification"), (21, "regression")])
def test_few_means_at_most_twenty(tmp_path, distinct, task):
    frame = pd.DataFrame({"x": np.arange(100.0), "y": np.arange(100) % distinct})
    assert Table(save(frame, tmp_path / "t.csv"), target="y").task == task


def test_few_means_twice_each_on_average(tmp_path):
    frame = pd.DataFrame({"x": np.arange(10.0), "y": np.arange(10)})
    assert Table(save(frame, tmp_path / "t.csv"), target="y").task == "regression"


def test_csv_and_parquet_of_the_same_rows_are_the_same_data(tmp_path):
    csv, parquet = (Table(save(people(), tmp_path / f"p.{end}"), target="city") for end in ("csv", "parquet"))
    assert csv.fingerprint() == parquet.fingerprint()
    assert csv.preparation == parquet.preparation
    assert_same(batches(csv.train_loader(1)), batches(parquet.train_loader(1)))
    assert_same(batches(csv.val_loader()), batches(parquet.val_loader()))


def test_the_target_and_the_split_are_not_part_of_the_fingerprint(file):
    assert Table(file, target="city").fingerprint() == Table(file, target="age", split_seed=4).fingerprint()


def test_one_changed_cell_changes_the_fingerprint(tmp_path):
    frame = people()
    before = Table(save(frame, tmp_path / "a.csv"), target="level").fingerprint()
    frame.loc[59, "city"] = "Rome" if frame.loc[59, "city"] != "Rome" else "Oslo"
    assert Table(save(frame, tmp_path / "b.csv"), target="level").fingerprint() != before


def test_numbers_are_standardised_by_the_train_part(file):
    data = Table(file, target="city")
    age = data._train.tensors[0][:, 0]
    assert abs(age.mean()) < 1e-6
    assert age.std(correction=0) == pytest.approx(1)
    assert abs(data._val.tensors[0][:, 0].mean()) > 1e-3
    assert data.preparation["features"]["age"].keys() == {"mean", "std"}


def test_a_missing_number_becomes_the_mean_of_the_train_part(file):
    data = Table(file, target="income")
    x = torch.cat([data._train.tensors[0], data._val.tensors[0]])
    assert (x[:, 1] == 0).sum() == people()["height"].isna().sum()
    assert data.rows == 60


def test_text_has_one_column_for_each_value(file):
    data = Table(file, target="income")
    x = torch.cat([data._train.tensors[0], data._val.tensors[0]])
    assert data.preparation["features"]["city"] == {"values": ["Lima", "Oslo", "Rome"]}
    assert x[:, 2:5].sum(0).tolist() == [
        (people()["city"] == city).sum() for city in ("Lima", "Oslo", "Rome")
    ]
    assert (x[:, 2:5].sum(1) == 1).all()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_missing_text_is_all_zeros(tmp_path, ending):
    frame = people()
    frame.loc[:9, "city"] = None
    data = Table(save(frame, tmp_path / f"t.{ending}"), target="income")
    x = torch.cat([data._train.tensors[0], data._val.tensors[0]])
    assert (x[:, 2:5].sum(1) == 0).sum() == 10


def test_a_text_that_only_the_validation_part_has_is_all_zeros(tmp_path):
    frame = pd.DataFrame({"t": ["a", "b"] * 10, "y": np.arange(20.0)})
    _, val = split_rows(20, 0.2, 0)
    frame.loc[val[0], "t"] = "new"
    data = Table(save(frame, tmp_path / "t.csv"), target="y")
    assert data.input_shape == (2,)
    assert data._val.tensors[0][0].tolist() == [0, 0]


def test_the_target_of_a_regression_is_standardised_and_can_be_had_back(file):
    data = Table(file, target="income")
    aim = data.preparation["target"]
    incomes = torch.cat([data._train.tensors[1], data._val.tensors[1]]).double() * aim["std"] + aim["mean"]
    assert data._train.tensors[1].mean().abs() < 1e-6
    assert np.sort(incomes.flatten().numpy()) == pytest.approx(np.sort(people()["income"]), rel=1e-5)


def test_the_preparation_is_plain_data(file):
    data = Table(file, target="income")
    assert json.loads(json.dumps(data.preparation)) == data.preparation


def test_a_constant_column_does_no_harm(tmp_path):
    frame = people().assign(constant=0.1)
    data = Table(save(frame, tmp_path / "t.csv"), target="level")
    assert torch.isfinite(data._train.tensors[0]).all()


def test_a_relative_path_starts_at_the_working_directory(tmp_path, monkeypatch):
    save(people(), tmp_path / "people.csv")
    monkeypatch.chdir(tmp_path)
    data = Table("people.csv", target="city")
    assert (data.name, data.source) == ("people", str(tmp_path / "people.csv"))


def test_a_home_directory_is_expanded(tmp_path, monkeypatch):
    save(people(), tmp_path / "people.csv")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Table("~/people.csv", target="city").rows == 60


def test_a_compressed_csv_is_read(tmp_path):
    path = tmp_path / "people.csv.gz"
    path.write_bytes(gzip.compress(people().to_csv(index=False).encode()))
    assert Table(str(path), target="city").rows == 60


def test_times_are_numbers(tmp_path):
    days = pd.date_range("2026-01-01", periods=20, tz="UTC")
    frame = pd.DataFrame({"time": days, "date": days.date, "y": np.arange(20.0), "wait": days - days[0]})
    data = Table(save(frame, tmp_path / "t.parquet"), target="y")
    assert data.preparation["features"]["date"]["std"] == pytest.approx(5.77 * 86400, rel=0.2)
    assert data.input_shape == (3,)


def test_nullable_decimal_and_category_columns_are_read(tmp_path):
    from decimal import Decimal

    frame = pd.DataFrame(
        {
            "int": pd.array([1, None, 3, 4] * 5, dtype="Int64"),
            "bool": pd.array([True, False, None, True] * 5, dtype="boolean"),
            "decimal": [Decimal("1.5"), None, Decimal("2.5"), Decimal("1.0")] * 5,
            "grade": pd.Categorical(["b", "a", "a", None] * 5),
            "big": np.array([2**63, 1, 2, 3] * 5, dtype=np.uint64),
            "y": np.arange(20.0),
        }
    )
    data = Table(save(frame, tmp_path / "t.parquet"), target="y")
    recipes = data.preparation["features"]
    assert recipes["bool"] == {"values": ["False", "True"]}
    assert recipes["grade"] == {"values": ["a", "b"]}
    assert {"mean", "std"} == recipes["int"].keys() == recipes["decimal"].keys()
    assert recipes["big"]["mean"] > 1e18


def test_a_named_index_in_a_parquet_file_is_a_column(tmp_path):
    frame = people().set_index("age")
    assert "age" in Table(save(frame, tmp_path / "t.parquet"), target="city").preparation["features"]


def test_excluded_columns_are_not_used_but_are_part_of_the_data(file):
    data = Table(file, target="income", exclude=["city", "height"])
    assert list(data.preparation["features"]) == ["age", "member", "level"]
    assert data.fingerprint() == Table(file, target="income").fingerprint()


def test_texts_that_stand_for_a_missing_value_can_be_given(tmp_path):
    frame = people().astype({"age": object})
    frame.loc[3, "age"] = "?"
    path = save(frame, tmp_path / "t.csv")
    with pytest.raises(
        ConfigError, match=r"'age' has numbers beside text such as '\?' \(\"data.missing=\['\?'\]\"\?\)"
    ):
        Table(path, target="city")
    assert "mean" in Table(path, target="city", missing=["?"]).preparation["features"]["age"]


def refusal(path, target, **options):
    with pytest.raises(ConfigError) as caught:
        Table(str(path), target, **options)
    return str(caught.value)


def test_a_file_that_is_not_there_is_named_with_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal("no.csv", "y")
    assert (
        f"found nothing at {tmp_path / 'no.csv'}; a relative path starts at the working directory" in message
    )
    assert f"found a directory at {tmp_path}" in refusal(tmp_path, "y")


def test_an_unknown_target_names_the_columns_and_the_nearest(tmp_path):
    message = refusal(save(people(), tmp_path / "t.csv"), "incone")
    assert "found age, height, city, member, income, level; did you mean 'income'?" in message


def test_another_separator_is_recognised(tmp_path):
    path = tmp_path / "t.csv"
    people().to_csv(path, sep=";", index=False)
    assert """give "data.separator=';'\"""" in refusal(path, "city")
    assert Table(str(path), "city", separator=";").rows == 60


def test_a_target_whose_name_is_a_number_is_found(tmp_path):
    path = save(people().rename(columns={"income": "2026"}), tmp_path / "t.csv")
    assert Table(path, target=2026).task == "regression"


@pytest.mark.parametrize("name", ["t.xlsx", "t", "t.gz", "csv"])
def test_an_ending_that_is_not_known_is_refused(tmp_path, name):
    (tmp_path / name).write_text("a,b\n1,2\n")
    assert f"ends in .csv, .tsv, .parquet, .pq, found {name!r}" in refusal(tmp_path / name, "b")


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_file_is_refused(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    assert "expected a table, found nothing in" in refusal(tmp_path / "t.csv", "y")


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_too_few_rows_are_refused(tmp_path, rows):
    path = save(people()[:rows], tmp_path / "t.csv")
    assert f"expected at least 3 rows below the names, found {rows}" in refusal(path, "income")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.csv.gz"])
def test_a_file_of_something_else_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe\x00\x01 not a table \x80")
    assert f"cannot read {tmp_path / name}" in refusal(tmp_path / name, "y")


def test_rows_longer_than_the_names_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2,3\n" * 5)
    assert "found rows longer than the names" in refusal(tmp_path / "t.csv", "b")


def test_one_class_only_is_refused(tmp_path):
    path = save(people().assign(y="same"), tmp_path / "t.csv")
    assert "column 'y': expected at least two different values, found only same" in refusal(path, "y")


@pytest.mark.parametrize("column", ["income", "city"])
def test_rows_without_a_target_are_counted(tmp_path, column):
    frame = people()
    frame.loc[[4, 9, 30], column] = None
    message = refusal(save(frame, tmp_path / "t.csv"), column)
    assert f"column {column!r}: expected a value in every row, found none in 3 of 60 rows" in message
    assert "the first is row 5 below the names" in message


def test_text_cannot_be_regressed(tmp_path):
    message = refusal(save(people(), tmp_path / "t.csv"), "city", task="regression")
    assert "expected numbers for data.task=regression, found text such as" in message


def test_a_target_with_nearly_as_many_classes_as_rows_is_refused(tmp_path):
    path = save(people().assign(id=[f"p{i}" for i in range(60)]), tmp_path / "t.csv")
    assert "found 60 different values in 60 rows; is it an identifier?" in refusal(path, "id")
    assert "give data.task=regression" in refusal(path, "income", task="classification")


def test_columns_that_tell_nothing_are_refused_all_at_once(tmp_path):
    frame = people(200).assign(**{"full name": [f"p{i}" for i in range(200)], "empty": np.nan})
    path = tmp_path / "t.csv"
    frame.to_csv(path)  # with the row numbers as a column without a name
    message = refusal(path, "city")
    assert "'full name' has 160 different texts" in message
    assert "'empty' has no values" in message
    assert "'Unnamed: 0' has no name in the file (row numbers?)" in message
    assert message.endswith("""\"data.exclude=['Unnamed: 0','full name',empty]\"""")
    assert Table(str(path), "city", exclude=["Unnamed: 0", "full name", "empty"]).rows == 200


def test_infinite_numbers_are_refused(tmp_path):
    frame = people()
    frame.loc[5, "income"] = np.inf
    path = save(frame, tmp_path / "t.csv")
    assert "column 'income': expected finite numbers, found 1 infinite" in refusal(path, "city")
    assert "data.target: column 'income': expected finite numbers" in refusal(path, "income")


def test_a_column_of_lists_is_refused(tmp_path):
    path = save(people().assign(tags=[[1, 2]] * 60), tmp_path / "t.parquet")
    assert "column 'tags': expected numbers or text, found ndarray" in refusal(path, "city")


def test_an_unknown_task_and_an_unknown_excluded_column_are_refused(tmp_path):
    path = save(people(), tmp_path / "t.csv")
    assert "data.task: expected auto, classification or regression" in refusal(path, "city", task="ranking")
    assert "did you mean 'height'?" in refusal(path, "city", exclude=["heigth"])
    assert "expected to leave 'city' and a column to predict it from" in refusal(
        path, "city", exclude=["city"]
    )


def test_a_table_that_is_not_what_the_config_says_is_refused(tmp_path):
    path = save(people(), tmp_path / "t.csv")
    assert "data.outputs: expected 3, as t has it, found 4" in refusal(path, "city", outputs=4)


def test_rows_longer_than_the_names_are_refused_whatever_their_first_value(tmp_path):
    for first in (
        "1,2,3\n4,5,6\n7,8,9\n",
        "0,2,3\n1,5,6\n2,8,9\n",
        "x,2,3\ny,5,6\nz,8,9\n",
        "1,2,\n4,5,\n7,8,\n",
    ):
        (tmp_path / "t.csv").write_text(f"a,b\n{first}")
        assert "found rows longer than the names" in refusal(tmp_path / "t.csv", "b")


def test_a_name_that_comes_twice_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,a,y\n1,2,3\n4,5,6\n7,8,9\n")
    assert "expected one column of a name, found several a" in refusal(tmp_path / "t.csv", "y")


def test_text_among_numbers_is_found_in_whichever_part_it_fell(tmp_path):
    for row in range(40):
        rows = [f"{n / 7},{n % 2}" for n in range(40)]
        rows[row] = f"oops,{row % 2}"
        (tmp_path / "t.csv").write_text("a,y\n" + "\n".join(rows) + "\n")
        assert "numbers beside text such as 'oops'" in refusal(tmp_path / "t.csv", "y")


def test_a_column_that_is_excluded_may_hold_anything(tmp_path):
    path = save(people().assign(tags=[[1, 2]] * 60), tmp_path / "t.parquet")
    assert "data.exclude=[tags]" in refusal(path, "city")
    without = save(people(), tmp_path / "u.parquet")
    assert Table(path, "city", exclude=["tags"]).input_shape == Table(without, "city").input_shape


def test_a_tab_can_be_given_as_the_hint_says_it(tmp_path):
    path = tmp_path / "t.csv"
    people().to_csv(path, index=False, sep="\t")
    assert r"data.separator='\t'" in refusal(str(path), "city")
    assert (
        Table(str(path), "city", separator=r"\t").input_shape
        == Table(str(path), "city", separator="\t").input_shape
    )


def test_a_separator_of_several_characters_is_refused(tmp_path):
    path = save(people(), tmp_path / "t.csv")
    assert "data.separator: expected one character" in refusal(path, "city", separator="||")


def test_text_in_another_encoding_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(people().assign(city="Malmö").to_csv(index=False).encode("latin-1"))
    assert "save it as UTF-8" in refusal(str(path), "age")


def test_a_path_that_no_file_can_have_is_refused(tmp_path):
    assert "found nothing at" in refusal("x" * 300 + ".csv", "y")


@pytest.mark.parametrize(
    "value", [";", "|", ["größe"], ["Height (cm)", "a"], ["it's $5"], ["x, y", 'a "b"'], [r"a\b"]]
)
def test_a_setting_in_a_message_can_be_typed_as_it_stands(value):
    (override,) = shlex.split(typed("data.x", value))
    assert overrides.parsed([override]) == [("data.x", value)]
