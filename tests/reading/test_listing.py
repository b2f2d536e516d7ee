"""The table of `daypoint ls`: which runs, in which order, with which columns."""

import json
import math
import tracemalloc

import pytest
from filed_runs import epoch, file_run

from daypoint.base import day, tables
from daypoint.base.errors import AddressError, ConfigError
from daypoint.reading import columns as module
from daypoint.reading.listing import listing, objects, sorted_by
from daypoint.reading.query import MISSING
from daypoint.record import identity


def config(lr, **more):
    return {
        "optimizer": {"_target_": "torch.optim.Adam", "lr": lr},
        "trainer": {"seed": 0, "device": "cpu"},
        **more,
    }


@pytest.fixture
def outputs(tmp_path):
    outputs = tmp_path / "outputs"
    for hour, (lr, accuracy) in enumerate([(0.1, 0.7), (0.01, math.nan), (0.001, 0.9)]):
        file_run(
            outputs,
            f"20260301-{hour + 10}0000",
            config=config(lr),
            epochs=[epoch(0, batches={"loss": [2.0, 1.0]}, val__accuracy=accuracy)],
        )
    return outputs


def column(found, name):
    place = found.table.columns.index(name)
    return [row[place] for row in found.table.rows]


def test_columns_are_what_varies_the_best_and_the_last_metrics(outputs):
    found = listing(outputs)
    assert found.table.columns == [
        "run",
        "status",
        "optimizer.lr",
        "best val/accuracy",
        "val/accuracy",
        "loss",
        "steps",
    ]
    assert column(found, "optimizer.lr") == [0.1, 0.01, 0.001]
    assert column(found, "loss") == [1.5] * 3
    assert found.left_out == 0


def test_a_hyperparameter_that_changes_no_result_is_not_shown(outputs):
    file_run(outputs, "20260301-130000", config=config(0.1, tracking={"name": "x"}))
    assert not [name for name in listing(outputs).table.columns if name.startswith("tracking")]


def test_a_hyperparameter_that_some_have_not_is_shown_empty_and_null_is_written_out(outputs):
    file_run(outputs, "20260301-130000", config=config(0.1, dropout=None))
    assert column(listing(outputs), "dropout") == [None, None, None, "null"]
    file_run(outputs, "20260301-140000", config=config(0.1))
    assert column(listing(outputs), "dropout") == [None, None, None, "null", None]


def test_a_value_that_only_followed_another_is_not_shown(outputs):
    """`scheduler.total_steps` is `${trainer.updates}`, which the program filled in."""
    for hour, epochs in ((13, 2), (14, 3)):
        more = {"epochs": epochs, "scheduler": {"total": epochs * 23}, "updates": epochs * 23}
        file_run(
            outputs,
            f"20260302-{hour}0000",
            config=config(0.1, **more),
            references={"scheduler.total": "updates"},
            filled={"updates": None},
        )
    assert listing(outputs, "20260302").table.columns[2] == "epochs"
    assert not {"scheduler.total", "updates"} & set(listing(outputs).table.columns)
    file_run(outputs, "20260302-150000", config=config(0.1, epochs=3, updates=5), references={}, filled={})
    assert "updates" in listing(outputs, "20260302").table.columns


def test_true_and_1_are_not_the_same(outputs, tmp_path):
    for hour, value in ((10, True), (11, 1)):
        file_run(tmp_path / "two", f"20260301-{hour}0000", config={"amp": value})
    assert column(listing(tmp_path / "two"), "amp") == [True, 1]


def test_too_many_varying_hyperparameters_are_named_instead(tmp_path):
    for hour in (10, 11):
        file_run(tmp_path, f"20260301-{hour}0000", config={f"p{i}": hour for i in range(module.PARAMS + 2)})
    found = listing(tmp_path)
    assert found.more_params == [f"p{module.PARAMS}", f"p{module.PARAMS + 1}"]


@pytest.fixture
def kinds(tmp_path):
    """Two kinds of model, and a script that has nothing in common with them."""
    outputs = tmp_path / "kinds"
    models = [{"_target_": "zoo.MLP", "width": 64, "dropout": 0.1}, {"_target_": "zoo.CNN", "channels": 8}]
    for hour, (lr, epochs, model) in enumerate(
        [(0.1, 3, models[0]), (0.01, 4, models[0]), (0.1, 4, models[1])]
    ):
        cfg = config(lr, model={**model, "outputs": 10 + hour}, batch=32 + hour)
        cfg["trainer"]["epochs"] = epochs
        file_run(
            outputs,
            f"20260301-{hour + 10}0000",
            config=cfg,
            epochs=[epoch(0, val__accuracy=0.9)],
            choices={"model": "mlp" if hour < 2 else "cnn"},
        )
    for run in day.run_directories(outputs):
        record = identity.read_run(run)
        record["attempts"][0]["overrides"] = ["trainer.epochs=3"]
        identity.write_run(run, record)
    file_run(outputs, "20260301-130000", config={"lr": 1.0}, name="reproduces x", reproduces={"address": "x"})
    return outputs


@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
def test_in_a_terminal_a_row_is_not_wider_than_it(kinds, width):
    text = tables.text(listing(kinds, width=width).table)
    assert max(map(len, text.splitlines())) <= width


def test_in_a_terminal_what_was_given_comes_before_what_all_have_before_what_a_kind_has(kinds):
    found = listing(kinds, width=62)
    assert found.table.columns == ["run", "status", "model", "epochs", "best val/accuracy"]
    assert listing(kinds, width=70).table.columns[3:5] == ["lr", "epochs"]
    assert found.more_params[:3] == ["optimizer.lr", "batch", "model.outputs"]
    assert {"model.width", "model.channels", "trainer.seed"} <= set(found.more_params)
    assert found.table.rows[0][0] == "20260301/100000"


def test_the_name_of_a_reproduction_takes_no_room_from_others(kinds):
    assert "name" in listing(kinds).table.columns
    assert "name" not in listing(kinds, width=100).table.columns
    file_run(kinds, "20260301-140000", name="mine")
    assert "name" in listing(kinds, width=100).table.columns


def test_the_limit_keeps_the_newest(outputs):
    found = listing(outputs, limit=1)
    assert column(found, "run") == ["20260301/120000-000000"]
    assert found.left_out == 2


def test_a_query_with_a_limit_reads_only_as_far_as_it_has_to(outputs):
    file_run(outputs, "20260228-100000", drop=("attempts",))
    found = listing(outputs, where="optimizer.lr >= 0.01", limit=1)
    assert column(found, "run") == ["20260301/110000-000000"]
    assert found.complaints == []


def test_a_query_with_a_limit_still_finds_a_name_that_no_run_has(outputs):
    with pytest.raises(ConfigError, match="momentun"):
        listing(outputs, where="optimizer.lr > 0 or momentun > 0", limit=1)


@pytest.mark.parametrize(
    ("sort", "hours"),
    [
        ("optimizer.lr", "12 11 10"),
        ("-best", "12 10 11"),
        ("best", "10 12 11"),
        ("-val/accuracy", "12 10 11"),
        ("-time", "12 11 10"),
    ],
)
def test_sorting_puts_what_has_no_value_last(outputs, sort, hours):
    runs = column(listing(outputs, sort=sort), "run")
    assert [run[9:11] for run in runs] == hours.split()


def test_the_limit_of_a_sorted_list_keeps_the_first(outputs):
    found = listing(outputs, sort="-best", limit=1)
    assert column(found, "run") == ["20260301/120000-000000"]
    assert found.left_out == 2


def test_mixed_values_are_sorted_numbers_first():
    values = ["b", 2, None, MISSING, math.nan, 1, "a", True]
    assert sorted_by(values, lambda x: x, descending=False)[:5] == [1, True, 2, "a", "b"]


def test_columns_can_be_chosen(outputs):
    found = listing(outputs, columns=["day", "time", "lr", "best(val/accuracy)", "tags.team"])
    assert found.table.columns == ["day", "time", "lr", "best(val/accuracy)", "tags.team"]
    assert found.table.rows[0] == ["20260301", "10:00:00", 0.1, 0.7, "blue"]


def test_a_column_that_no_run_has_is_refused(outputs):
    with pytest.raises(ConfigError, match="expected a fact"):
        listing(outputs, columns=["nothing"])


def test_addresses_are_days_ranges_and_the_beginning_of_a_time(outputs):
    file_run(outputs, "20260303-100000")
    assert len(listing(outputs, "20260301").table.rows) == 3
    assert len(listing(outputs, "20260302..20260401").table.rows) == 1
    assert len(listing(outputs, "20260301/11").table.rows) == 1
    assert listing(outputs, "20260302").table.rows == []
    with pytest.raises(AddressError, match="it names no run"):
        listing(outputs, "20260302/10")


def test_a_damaged_run_is_a_complaint(outputs):
    (outputs / "20260301" / "110000-000000" / "run.json").write_text("{")
    found = listing(outputs)
    assert len(found.table.rows) == 2
    assert "110000-000000" in found.complaints[0]


@pytest.mark.parametrize(
    "text", ["{", '{"epochs": 5}', '{"epochs": [{}]}', '{"epochs": [{"stats": 1, "metrics": {}}]}', "[]"]
)
def test_a_damaged_train_log_leaves_the_metrics_empty(outputs, text):
    (outputs / "20260301" / "110000-000000" / "train_log_20260301.json").write_text(text)
    assert column(listing(outputs), "loss") == [1.5, None, 1.5]


def test_jobs_of_a_sweep_are_listed_in_their_order_also_the_tenth(outputs):
    """C32, C66: job 10 comes after job 2."""
    for job in (0, 1, 2, 10):
        made = file_run(outputs, f"20260301-2{job // 10}000{job % 10}", sweep={"directory": "s", "job": job})
        sweep = outputs / "20260301" / "sweep-150233-654321"
        sweep.mkdir(exist_ok=True)
        made.rename(sweep / str(job))
    found = listing(outputs, "20260301/sweep-1502", columns=["address", "job"])
    assert [row[1] for row in found.table.rows] == [0, 1, 2, 10]


def test_outside_a_sweep_a_job_has_no_number(outputs):
    """C81: neither None nor ???."""
    found = listing(outputs, columns=["job", "sweep"])
    assert "None" not in tables.text(found.table) + tables.as_csv(found.table)


def test_json_has_everything_of_every_run_one_at_a_time(outputs):
    complaints = []
    rows = json.loads("".join(tables.as_json(objects(outputs, None, complaints))))
    assert [row["config"]["optimizer.lr"] for row in rows] == [0.1, 0.01, 0.001]
    assert rows[1]["metrics"]["val/accuracy"]["last"] == "NaN"
    assert rows[0]["metrics"]["loss"] == {"first": 1.5, "last": 1.5, "best": 1.5, "min": 1.0, "max": 2.0}


def test_json_takes_the_same_query_order_and_limit_as_the_table(outputs):
    asked = {"where": "optimizer.lr < 1", "sort": "-best", "limit": 2}
    rows = [row["address"] for row in objects(outputs, None, [], **asked)]
    assert rows == column(listing(outputs, **asked), "run")


def test_memory_does_not_grow_with_the_number_of_runs(tmp_path):
    """Run records are read one at a time; of a run that is not shown nothing is kept."""

    def peak_bytes(count):
        for number in range(count):
            name = f"20260301-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}"
            big = {f"key{i}": [number] * 50 for i in range(40)}
            file_run(tmp_path / str(count), name, config={**config(number), "big": big})
        tracemalloc.start()
        listing(tmp_path / str(count), where="optimizer.lr >= 0", limit=0, columns=["optimizer.lr"])
        for _ in objects(tmp_path / str(count), None, []):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    few, many = peak_bytes(20), peak_bytes(200)
    assert many - few < 180 * 1500  # a path and a row of one cell; a record in memory takes 100 kB
