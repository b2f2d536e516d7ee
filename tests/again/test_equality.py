"""Equality: no value that differs goes unnoticed, and none that is the same is said to differ."""

import math

import pytest

import daypoint
from daypoint.again import equality
from daypoint.base import files
from daypoint.record import catalog
from daypoint.run import causes


@pytest.fixture
def record(tmp_path):
    """A function that records a run: a dict for each batch, a string for an epoch's end with that value of `val`."""

    def make(*events, cfg=None, fail=False, **options):
        outputs = tmp_path / "outputs"
        plain = {
            **(cfg or {}),
            "tracking": {"enabled": False, "outputs": str(outputs), "on_nonfinite": "record"},
        }
        try:
            with daypoint.open_run(plain, quiet=True, **options) as run:
                for event in events:
                    if isinstance(event, dict):
                        run.log(event)
                    else:
                        run.log_epoch(val=float(event))
                if fail:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        return catalog.read(run.directory, outputs)

    return make


def test_the_same_values_are_identical_and_counted(record):
    values = [{"loss": 0.1, "ok": True}, {"loss": math.nan, "n": 2**70}, "0.5", {"loss": -math.inf}]
    found = equality.compare(record(*values), record(*values))
    assert found.identical
    assert (found.batches, found.metrics, found.values) == (3, ["loss", "n", "ok", "val"], 6)
    assert equality.report(found)[0] == "identical: 3 batches, 4 metrics, 6 values"


def test_the_last_bit_of_one_value_is_a_difference(record):
    after = math.nextafter(0.1, 1)
    found = equality.compare(record({"loss": 0.1}, {"loss": 0.1}), record({"loss": 0.1}, {"loss": after}))
    assert not found.identical
    assert found.first == [equality.Difference(1, "loss", 0.1, after)]
    text = "\n".join(equality.report(found))
    assert "first at step 1:\n  loss: was 0.1, now 0.10000000000000002" in text


def test_the_largest_differences_are_found_absolute_and_relative(record):
    before = record({"big": 1000.0, "small": 1e-6}, {"big": 1000.0, "small": 1e-6})
    after = record({"big": 1001.0, "small": 1e-6}, {"big": 1010.0, "small": 2e-6})
    found = equality.compare(before, after)
    assert (found.largest.metric, found.largest.step, found.largest.absolute) == ("big", 1, 10.0)
    assert (found.largest_relative.metric, found.largest_relative.relative) == ("small", 0.5)
    assert found.different == {"big": 2, "small": 1}


@pytest.mark.parametrize(
    ("before", "after"),
    [(math.nan, 1.0), (math.inf, -math.inf), (1.0, math.inf), (10**400, 1.0), (10**400, 10**401 + 1)],
)
def test_what_cannot_be_measured_differs_infinitely(before, after):
    difference = equality.Difference(0, "loss", before, after)
    assert difference.absolute == difference.relative == math.inf


def test_a_metric_that_only_one_has_is_a_difference(record):
    found = equality.compare(record({"loss": 1.0}), record({"loss": 1.0, "norm": 2.0}))
    assert found.first == [equality.Difference(0, "norm", None, 2.0)]


def test_batches_that_only_one_has_are_counted_and_not_equal(record):
    found = equality.compare(record(*[{"loss": 1.0}] * 5), record(*[{"loss": 1.0}] * 3))
    assert (found.batches, found.only_before, found.only_after) == (3, 2, 0)
    assert not found.identical
    assert "only in the original: 2 batches" in equality.report(found)


def test_an_epoch_metric_counts_as_much_as_a_batch(record):
    found = equality.compare(record({"loss": 1.0}, "0.5"), record({"loss": 1.0}, "0.6"))
    assert found.first == [equality.Difference(0, "val", 0.5, 0.6)]
    assert not equality.compare(record({"loss": 1.0}, "0.5"), record({"loss": 1.0})).identical
    assert not equality.compare(record({"loss": 1.0}), record({"loss": 1.0}, "0.5")).identical


def test_only_so_many_batches_are_compared_and_nothing_after_the_last_of_them(record):
    before = record({"loss": 1.0}, {"loss": 2.0}, "0.5", {"loss": 3.0})
    after = record({"loss": 1.0}, {"loss": 2.0})
    found = equality.compare(before, after, batches=2)
    assert found.identical
    assert found.values == 2


def test_an_ignored_metric_is_not_compared_and_that_is_said(record):
    found = equality.compare(
        record({"loss": 1.0, "seconds": 0.1}), record({"loss": 1.0, "seconds": 0.2}), ignore=["seconds"]
    )
    assert found.identical
    assert "not compared: seconds, 1 value" in equality.report(found)
    assert found.metrics == ["loss"]


def test_steps_that_a_resumed_run_did_twice_count_once(record):
    died = record({"loss": 1.0}, {"loss": 7.0}, fail=True)
    resumed = record({"loss": 1.0}, {"loss": 2.0}, "0.5", resume=died.directory)
    found = equality.compare(resumed, record({"loss": 1.0}, {"loss": 2.0}, "0.5"))
    assert found.identical
    assert found.batches == 2


def test_weights_are_compared_by_their_bytes(record, tmp_path):
    import torch

    def saved(value):
        outputs = tmp_path / "outputs"
        net = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(net.weight, value)
        torch.nn.init.zeros_(net.bias)
        cfg = {"tracking": {"enabled": False, "outputs": str(outputs)}}
        with daypoint.open_run(cfg, quiet=True) as run:
            run.log(loss=1.0)
            run.save(model=net)
        return catalog.read(run.directory, outputs)

    assert equality.compare(saved(1.0), saved(1.0)).weights == {"step000001": True}
    other = equality.compare(saved(1.0), saved(2.0))
    assert other.weights == {"step000001": False}
    assert not other.identical
    assert "weights: differ in step000001" in equality.report(other)


def test_a_damaged_journal_is_named(record):
    before, after = record({"loss": 1.0}, {"loss": 2.0}), record({"loss": 1.0}, {"loss": 2.0})
    content = after.files.journal.read_bytes()
    after.files.journal.write_bytes(content.replace(b'"loss":2', b'"loss":3'))
    found = equality.compare(before, after)
    assert not found.identical
    assert any("the checksum does not match" in line for line in equality.report(found))


def test_the_result_is_strict_json(record):
    found = equality.compare(record({"loss": 1.0}), record({"loss": math.nan}))
    document = files.loads(files.dumps(found.to_dict()))
    assert document["identical"] is False
    assert document["first"] == [{"step": 0, "metric": "loss", "before": 1.0, "after": "NaN"}]
    assert document["largest"]["absolute"] == "Infinity"


# ---------------------------------------------------------------- why


def test_two_runs_of_one_program_have_no_cause_to_differ(record):
    assert causes.between(record({"loss": 1.0}).record, record({"loss": 1.0}).record) == []


def test_every_cause_is_named_with_both_values(record):
    git = {"commit": "a" * 40, "branch": "main", "dirty": False, "reason": None, "diff_sha256": None}
    before = record({"loss": 1.0}, cfg={"lr": 0.1}).record
    before = {
        **before,
        "device": "cuda:0",
        "threads": 4,
        "data": {"name": "d", "fingerprint": "f1"},
        "attempts": [{**before["attempts"][0], "git": git}],
    }
    after = {
        **before,
        "config": {"lr": 0.2},
        "attempts": [{**before["attempts"][0], "git": {**git, "commit": "b" * 40, "diff_sha256": "d" * 64}}],
        "device": "cpu",
        "threads": 2,
        "host": "elsewhere",
        "data": {"name": "d", "fingerprint": "f2"},
        "versions": {**before["versions"], "torch": "9.9"},
    }
    lines = causes.between(before, after)
    for text in (
        "config: lr was 0.1, now 0.2",
        "code: the commit was aaaaaaaaaaaa, now bbbbbbbbbbbb",
        "code: uncommitted changes were none, now those with sha256 dddddddddddd",
        "data: fingerprint was f1, now f2",
        "device was cuda:0, now cpu",
        "threads was 4, now 2",
        f"host was {before['host']}, now elsewhere",
        f"versions: torch was {before['versions']['torch']}, now 9.9",
    ):
        assert text in lines
    assert len(lines) == 8


def test_without_a_cause_the_training_itself_is_suspected(record):
    found = equality.compare(record({"seconds": 1.0}), record({"seconds": 2.0}))
    text = "\n".join(equality.report(found))
    assert "the training itself does not repeat" in text
    assert "metrics that measure time never repeat: --ignore seconds" in text
