"""Opening, recording and ending a run, without Hydra and without MLflow."""

import contextlib
import enum
import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import orjson
import pytest
import torch
from omegaconf import OmegaConf

import daypoint
from daypoint.base import files
from daypoint.base.errors import ConfigError, RunError, ScalarError
from daypoint.record import catalog, identity, journal


@pytest.fixture
def cfg(tmp_path):
    """A config that keeps everything inside the test's own directory, and MLflow out of it."""
    return {"lr": 0.1, "tracking": {"enabled": False, "outputs": str(tmp_path / "outputs")}}


def events(run, kind):
    return [e for e in journal.read(run.directory / "journal.jsonl").events if e["event"] == kind]


def train_log(run):
    return orjson.loads((run.directory / f"train_log_{run.day}.json").read_bytes())


def test_a_run_leaves_the_layout_that_is_promised(cfg, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a project in no repository
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with daypoint.open_run(cfg, monitor="loss") as run:
        for _ in run.epochs(2):
            for loss in (3.0, 1.0):
                run.log(loss=loss)
            run.save(model=model, optimizer=optimizer)
    day = run.day
    found = {str(p.relative_to(run.directory)) for p in run.directory.rglob("*") if p.is_file()}
    checkpoint = {
        f"model_{day}.safetensors",
        f"model_{day}.json",
        f"state_{day}.safetensors",
        f"state_{day}.state.json",
    }
    assert found == {
        "run.json",
        f"config_{day}.yaml",
        "journal.jsonl",
        f"train_log_{day}.json",
        "checkpoints/last.json",
        "checkpoints/best.json",
        *(f"checkpoints/{step}/{name}" for step in ("step000002", "step000004") for name in checkpoint),
    }


def test_every_batch_is_in_the_journal_with_its_step_epoch_and_time(cfg):
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(2):
            for loss in (1.0, 2.0):
                run.log(loss=loss)
    batches = events(run, "batch")
    assert [(b["step"], b["epoch"], b["metrics"]) for b in batches] == [
        (0, 0, {"loss": 1.0}),
        (1, 0, {"loss": 2.0}),
        (2, 1, {"loss": 1.0}),
        (3, 1, {"loss": 2.0}),
    ]
    times = [b["time"] for b in batches]
    assert times == sorted(times)
    assert identity.read_run(run.directory)["started_ms"] <= times[0]


def test_the_train_log_has_count_mean_variance_min_and_max_of_each_epoch(cfg):
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(1):
            for loss in (1.0, 2.0, 6.0):
                run.log(loss=loss)
            run.log_epoch({"val/accuracy": 0.5})
    (epoch,) = train_log(run)["epochs"]
    assert epoch["stats"]["loss"] == {
        "count": 3,
        "nonfinite": 0,
        "mean": 3.0,
        "variance": pytest.approx(14 / 3),
        "min": 1.0,
        "max": 6.0,
        "last": 6.0,
    }
    assert epoch["metrics"] == {"val/accuracy": 0.5}
    assert (epoch["epoch"], epoch["first_step"], epoch["steps"], epoch["complete"]) == (0, 0, 3, True)


def test_steps_that_count_anew_in_every_epoch_are_counted_and_warned_of_once(cfg, capsys):
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(3):
            for i in range(4):
                run.log(loss=1.0, step=i)
    assert [epoch["steps"] for epoch in train_log(run)["epochs"]] == [4, 4, 4]
    warnings = capsys.readouterr().err
    assert warnings.count("steps are counted over the whole run, not from 0 in each epoch") == 1


def test_metrics_between_two_epochs_belong_to_the_one_that_ended_also_after_a_resume(cfg):
    model = torch.nn.Linear(1, 1)
    with daypoint.open_run(cfg) as run:
        for epoch in range(2):
            with run.epoch(epoch):
                run.log(loss=1.0)
            run.log_epoch({"val/loss": 0.5 + epoch})
            run.save(model=model)
    expected = [{"val/loss": 0.5}, {"val/loss": 1.5}]
    assert [epoch["metrics"] for epoch in train_log(run)["epochs"]] == expected
    with daypoint.open_run(cfg, resume=run.directory) as again:
        again.restore(model=model)
        with again.epoch(2):
            again.log(loss=1.0)
    assert [epoch["metrics"] for epoch in train_log(again)["epochs"]] == [*expected, {}]


def test_what_is_recorded_are_plain_numbers(cfg):
    with daypoint.open_run(cfg) as run:
        run.log({"a": torch.tensor(1.25, requires_grad=True), "b": torch.tensor(3)}, c=True)
        values = run.latest
    assert values == {"a": 1.25, "b": 3, "c": True}
    assert [type(v) for v in values.values()] == [float, int, bool]


def test_a_refused_value_leaves_nothing_of_its_call(cfg):
    with daypoint.open_run(cfg) as run:
        run.log(loss=1.0)
        with pytest.raises(ScalarError, match=r"step 1: acc: .*\(1,\)"):
            run.log(loss=2.0, acc=torch.tensor([0.5]))
        run.log(loss=3.0)
    assert [b["metrics"] for b in events(run, "batch")] == [{"loss": 1.0}, {"loss": 3.0}]
    assert [b["step"] for b in events(run, "batch")] == [0, 1]


def test_the_batch_size_makes_the_refusal_of_an_unreduced_loss_exact(cfg):
    with daypoint.open_run(cfg) as run:
        for _ in range(3):  # at the first, and when rows are being spooled
            with pytest.raises(
                ScalarError, match=r"per-sample \(batch size 8\): reduce it first, e\.g\. loss\.mean\(\)"
            ):
                run.log(loss=torch.zeros(8), batch_size=8)
            run.log(loss=0.5)


@pytest.mark.parametrize("step", [5, torch.tensor(5), __import__("numpy").int64(5)])
def test_a_step_becomes_an_exact_int_and_the_next_one_follows(cfg, step):
    with daypoint.open_run(cfg) as run:
        run.log(loss=1.0, step=step)
        run.log(loss=2.0)
    steps = [b["step"] for b in events(run, "batch")]
    assert steps == [5, 6]
    assert {type(s) for s in steps} == {int}


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", torch.tensor([3])])
def test_what_is_no_step_is_refused(cfg, step):
    with daypoint.open_run(cfg) as run, pytest.raises(ScalarError, match="step"):
        run.log(loss=1.0, step=step)


@pytest.mark.parametrize("log", ["log", "log_epoch"])
def test_an_integer_of_more_digits_than_python_writes_is_refused_and_harms_nothing(cfg, log):
    with daypoint.open_run(cfg) as run:
        with pytest.raises(
            ScalarError, match=r"^step 0: count: expected an integer .* of 16610 bits; record its log"
        ):
            getattr(run, log)(count=10**5000)
        run.log(count=10**3900)
    (batch,) = events(run, "batch")
    assert batch["metrics"] == {"count": 10**3900}


def test_no_step_follows_the_largest(cfg):
    with daypoint.open_run(cfg) as run:
        run.log(loss=1.0, step=2**63 - 1)
        with pytest.raises(ScalarError, match=r"^step: expected .*, got 9223372036854775808 "):
            run.log(loss=2.0)
    assert [b["step"] for b in events(run, "batch")] == [2**63 - 1]


def test_a_name_of_an_enumeration_is_recorded_as_its_text(cfg):
    class Metric(enum.StrEnum):
        LOSS = "loss"

    with daypoint.open_run(cfg) as run:
        run.log({Metric.LOSS: 1})
        run.log({"loss": 2})
        run.log({Metric.LOSS: 3})
        for value in (4.0, 5.0, 6.0):
            run.log({Metric.LOSS: value})
    assert [b["metrics"] for b in events(run, "batch")] == [
        {"loss": value} for value in (1, 2, 3, 4.0, 5.0, 6.0)
    ]


@pytest.mark.parametrize("name", ["", "x" * 300, 3])
def test_a_metric_name_that_mlflow_cannot_hold_is_refused_at_once(cfg, name):
    with daypoint.open_run(cfg) as run, pytest.raises(ScalarError, match=r"name|character"):
        run.log({name: 1.0})


def test_no_metrics_is_an_error(cfg):
    with daypoint.open_run(cfg) as run, pytest.raises(ScalarError, match="at least one metric"):
        run.log()


def log_all(run, *calls, **options):
    for call in calls:
        run.log(call, **options)


IN_TURNS = "in turns, and each log is a step of its own"


@pytest.mark.parametrize("defer", ["", "1"])
@pytest.mark.parametrize("parts", [({"a": 1.0}, {"b": 1.0}), ({"a": 1.0}, {"b": 1.0, "c": 2}, {"d": 3.0})])
def test_a_batch_that_is_logged_in_several_calls_is_warned_of_once(cfg, capsys, monkeypatch, parts, defer):
    monkeypatch.setenv("DAYPOINT_DEFER", defer)
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(2):
            log_all(run, *parts * 5)
        assert run.step == len(parts) * 10
    assert capsys.readouterr().err.count(IN_TURNS) == 1


@pytest.mark.parametrize(
    "log",
    [
        lambda run: log_all(run, *([{"loss": 1.0}] * 9 + [{"loss": 1.0, "accuracy": 1.0}]) * 5),
        lambda run: log_all(run, {"loss": 1.0}, *[{"loss": 1.0, "grad": 1.0}] * 5),
        lambda run: log_all(run, *([{"critic": 1.0}] * 5 + [{"generator": 1.0}]) * 5),
        lambda run: [log_all(run, {"a": 1.0}, {"b": 1.0}, step=i) for i in range(9)],
        lambda run: [(run.log(warmup=1.0), run.log(loss=1.0), run.log(accuracy=1.0)) for _ in range(1)],
    ],
    ids=["rare metric", "first batch", "several of a kind", "own steps", "once"],
)
def test_metrics_that_come_and_go_are_no_batch_in_parts(cfg, capsys, log):
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(2):
            log(run)
    assert IN_TURNS not in capsys.readouterr().err


def test_a_batch_before_each_epoch_is_no_batch_in_parts(cfg, capsys):
    with daypoint.open_run(cfg) as run:
        for epoch in range(5):
            run.log(warmup=1.0)
            with run.epoch(epoch):
                run.log(loss=1.0)
    assert IN_TURNS not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["save", "restore"])
def test_an_object_without_its_name_says_how_to_name_it(cfg, name):
    model = torch.nn.Linear(1, 1)
    with daypoint.open_run(cfg, quiet=True) as run:
        with pytest.raises(TypeError) as refused:
            getattr(run, name)(model)
        assert str(refused.value) == (
            f"{name}: expected each object by its name, found Linear without one; "
            f"write run.{name}(model=model, optimizer=optimizer)"
        )
        getattr(run, name)(model=model)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_line_of_an_epoch_says_what_the_closing_says_of_values_without_a_mean(cfg, capsys, value):
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(1):
            run.log(loss=value)
    said = capsys.readouterr().out
    assert said.count(f"loss {value}") == 2
    assert "–" not in said


def test_nan_is_recorded_and_said_once(cfg, capsys):
    with daypoint.open_run(cfg) as run:
        for value in (1.0, math.nan, math.inf, math.nan):
            run.log(loss=value)
    assert [str(b["metrics"]["loss"]) for b in events(run, "batch")] == ["1.0", "nan", "inf", "nan"]
    assert capsys.readouterr().err.count("loss is nan at step 1") == 1
    assert [n["text"] for n in events(run, "notice")] == ["loss is nan at step 1"]


def test_nan_can_stop_the_run_after_it_is_recorded(cfg):
    cfg["tracking"]["on_nonfinite"] = "stop"
    with pytest.raises(RunError, match=r"loss: nan at step 0"), daypoint.open_run(cfg) as run:
        run.log(loss=math.nan)
    assert math.isnan(events(run, "batch")[0]["metrics"]["loss"])
    assert identity.read_run(run.directory)["status"] == "FAILED"


@pytest.mark.parametrize("policy", ["record", "warn"])
def test_nan_in_validation_obeys_the_same_policy(cfg, policy, capsys):
    cfg["tracking"]["on_nonfinite"] = policy
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(1):
            run.log_epoch({"val/loss": math.nan})
    assert ("val/loss is nan" in capsys.readouterr().err) == (policy == "warn")
    assert train_log(run)["epochs"][0]["metrics"] == {"val/loss": "NaN"}


def test_every_file_is_strict_json(cfg):
    def refuse(name):
        raise AssertionError(name)

    with daypoint.open_run({**cfg, "clip": math.inf}) as run:
        for _ in run.epochs(1):
            run.log(loss=math.nan, big=2**70)
    for path in (*run.directory.glob("*.json"), *run.directory.glob("*.jsonl")):
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(text, parse_constant=refuse)
    assert identity.read_run(run.directory)["config"]["clip"] == math.inf


def test_the_config_file_reads_back_as_the_same_data(cfg):
    given = {
        **cfg,
        "text": "${not.a.reference}",
        "lr": 1e-5,
        "none": None,
        "clip": math.inf,
        "on": "yes",
        "time": "12:30:45",
    }
    with daypoint.open_run(OmegaConf.create({**given, "text": r"\${not.a.reference}"})) as run:
        pass
    loaded = OmegaConf.to_container(OmegaConf.load(run.directory / f"config_{run.day}.yaml"), resolve=True)
    assert loaded == given


@pytest.mark.parametrize(
    ("ending", "status", "raised"),
    [
        (lambda: None, "FINISHED", None),
        (lambda: sys.exit(0), "FINISHED", SystemExit),
        (lambda: sys.exit(3), "FAILED", SystemExit),
        (lambda: 1 / 0, "FAILED", ZeroDivisionError),
        (lambda: signal.raise_signal(signal.SIGINT), "KILLED", KeyboardInterrupt),
        (lambda: signal.raise_signal(signal.SIGTERM), "KILLED", SystemExit),
        (lambda: signal.raise_signal(signal.SIGUSR1), "KILLED", SystemExit),
        (lambda: signal.raise_signal(signal.SIGUSR2), "KILLED", SystemExit),
    ],
    ids=["end", "exit0", "exit3", "exception", "sigint", "sigterm", "sigusr1", "sigusr2"],
)
def test_each_ending_has_its_status(cfg, ending, status, raised):
    expected = pytest.raises(raised) if raised is not None else contextlib.nullcontext()
    with expected, daypoint.open_run(cfg) as run:
        for _ in run.epochs(3):
            run.log(loss=1.0)
            ending()
    record = identity.read_run(run.directory)
    (attempt,) = record["attempts"]
    assert (record["status"], attempt["status"]) == (status, status)
    assert attempt["ended"] is not None
    assert attempt["seconds"] >= 0
    (end,) = events(run, "end")
    assert end["status"] == status
    if raised is ZeroDivisionError:
        assert attempt["error"]["type"] == "ZeroDivisionError"
        assert "1 / 0" in attempt["error"]["traceback"]
    if raised is not None:
        assert train_log(run)["epochs"][0]["complete"] is False
        assert train_log(run)["epochs"][0]["stats"]["loss"]["count"] == 1


def test_sigterm_ends_with_the_exit_code_of_the_shell(cfg):
    with pytest.raises(SystemExit) as caught, daypoint.open_run(cfg):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_users_own_is_left_alone(cfg):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with daypoint.open_run(cfg):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [1]


def test_an_epoch_left_by_break_is_closed_and_marked(cfg):
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(5):
            run.log(loss=1.0)
            break
        run.log(loss=9.0)
    (epoch,) = train_log(run)["epochs"]
    assert epoch["complete"] is False
    assert epoch["stats"]["loss"]["max"] == 1.0
    assert events(run, "batch")[-1]["epoch"] is None


def test_one_epoch_at_a_time(cfg):
    refused = pytest.raises(RunError, match="epoch 1: epoch 0 is still open")
    with refused, daypoint.open_run(cfg) as run, run.epoch(0), run.epoch(1):
        pass


def test_logging_after_the_end_is_a_clear_error(cfg):
    with daypoint.open_run(cfg) as run:
        pass
    with pytest.raises(RunError, match="it has ended"):
        run.log(loss=1.0)


def test_a_directory_that_holds_a_run_is_refused(cfg, tmp_path):
    with daypoint.open_run(cfg, run_dir=tmp_path / "mine") as run:
        run.log(loss=1.0)
    before = {path: path.read_bytes() for path in run.directory.iterdir() if path.is_file()}
    with (
        pytest.raises(RunError, match="holds a run already"),
        daypoint.open_run(cfg, run_dir=tmp_path / "mine"),
    ):
        pass
    assert {path: path.read_bytes() for path in run.directory.iterdir() if path.is_file()} == before


def test_two_hyperparameters_with_one_name_are_refused_before_anything_is_written(cfg, tmp_path):
    with pytest.raises(ConfigError, match=r"a\.b"), daypoint.open_run({**cfg, "a.b": 1, "a": {"b": 2}}):
        pass
    assert not (tmp_path / "outputs").exists()


def test_a_misspelt_tracking_key_is_refused_before_anything_is_written(cfg, tmp_path):
    cfg["tracking"]["experimnt"] = "x"
    with pytest.raises(ConfigError, match=r"did you mean tracking\.experiment"), daypoint.open_run(cfg):
        pass
    assert not (tmp_path / "outputs").exists()


def test_a_file_store_is_refused_with_the_uri_to_use_instead(cfg, tmp_path):
    cfg["tracking"] |= {"enabled": True, "uri": "./mlruns"}
    with pytest.raises(ConfigError, match=r"sqlite:///"), daypoint.open_run(cfg):
        pass
    assert not (tmp_path / "outputs").exists()


def test_a_secret_reaches_no_file(cfg, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(
        tmp_path
    )  # the uncommitted changes of another project, such as this file, are none of its
    with daypoint.open_run(
        {**cfg, "db": {"password": "TOPSECRET"}, "url": "http://me:TOPSECRET@host/x"}
    ) as run:
        pass
    for path in run.directory.rglob("*"):
        if path.is_file():
            assert b"TOPSECRET" not in path.read_bytes()


def test_a_worker_process_that_logs_is_told_so_and_writes_nothing(cfg):
    with daypoint.open_run(cfg) as run:
        run.log(loss=1.0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run.log(loss=2.0)
            except RunError as error:
                code = 0 if "DataLoader worker" in str(error) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(events(run, "batch")) == 1


def test_another_rank_than_0_checks_its_values_and_writes_nothing(cfg, monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    directory = tmp_path / "shared"
    with daypoint.open_run(cfg, run_dir=directory) as run:
        assert not run.is_main
        for _ in run.epochs(1):
            run.log(loss=torch.tensor(1.5))
            with pytest.raises(ScalarError):
                run.log(loss=torch.tensor([1.5]))
            run.log_epoch(acc=1.0)
            assert run.save(model=torch.nn.Linear(1, 1)) is None
        assert run.step == 1
    assert not directory.exists()


def test_the_epoch_mean_and_checkpoint_survive_a_full_disk_as_a_loud_error(tmp_path):
    script = textwrap.dedent(
        f"""
        import resource, signal, daypoint
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with daypoint.open_run({{"tracking": {{"enabled": False, "outputs": {str(tmp_path)!r}}}}}) as run:
            print(run.directory, flush=True)
            run.log(loss=1.0)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            n = 1
            while True:
                run.log(loss=1.0)
                n += 1
                print(n, flush=True)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert "JournalError" in done.stderr
    acknowledged = int([line for line in done.stdout.splitlines() if line.isdigit()][-1])
    directory = next(line for line in done.stdout.splitlines() if line.startswith(str(tmp_path)))
    stored = catalog.read(files.Path(directory), tmp_path)
    batches = [e for e in journal.read(stored.files.journal).events if e["event"] == "batch"]
    assert len(batches) == acknowledged


def best_step(run):
    return files.loads((run.directory / "checkpoints" / "best.json").read_bytes())["step"]


def test_the_best_checkpoint_of_a_batch_metric_is_that_of_the_best_epoch_mean(cfg):
    model = torch.nn.Linear(1, 1)
    with daypoint.open_run(cfg, monitor="loss") as run:
        for epoch in run.epochs(2):
            for loss in [(1.0, 1.0, 1.0, 1.0), (5.0, 5.0, 5.0, 0.5)][epoch]:
                run.log(loss=loss)
            run.save(model=model)
    assert best_step(run) == 4


def test_a_checkpoint_that_was_not_validated_is_never_the_best(cfg):
    model = torch.nn.Linear(1, 1)
    with daypoint.open_run(cfg, monitor="val/accuracy") as run:
        for epoch in run.epochs(2):
            run.log(loss=1.0)
            if epoch == 0:
                run.log_epoch({"val/accuracy": 0.9})
            run.save(model=model)
    assert best_step(run) == 1


def test_a_misspelt_monitor_is_said_with_the_metrics_there_are(cfg, capsys):
    with daypoint.open_run(cfg, monitor="val/acc") as run:
        for _ in run.epochs(2):
            run.log(loss=1.0)
            run.log_epoch({"val/accuracy": 0.9})
            run.save(model=torch.nn.Linear(1, 1))
    said = capsys.readouterr().err
    assert (
        said.count("monitor 'val/acc': no metric of that name was logged; there are loss, val/accuracy") == 1
    )


def test_a_run_killed_in_its_first_epoch_does_not_look_empty(cfg, tmp_path):
    from daypoint.record import catalog

    script = (
        "import daypoint, os\n"
        f"with daypoint.open_run({cfg!r}, quiet=True) as run:\n"
        "    for _ in run.epochs(1):\n"
        "        for _ in range(5):\n            run.log(loss=0.5)\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    (run,), _ = catalog.list_runs(tmp_path / "outputs")
    assert (run.status, run.steps, run.metrics) == ("KILLED", 5, {"loss": 0.5})


@pytest.mark.parametrize(
    "ask", [lambda run: run.log_epoch({"v": 1.0}), lambda run: None], ids=["log_epoch", "end"]
)
def test_a_signal_after_the_last_step_is_not_swallowed(cfg, ask):
    model = torch.nn.Linear(1, 1)
    with pytest.raises(KeyboardInterrupt), daypoint.open_run(cfg) as run:
        run.restore(model=model)
        run.log(loss=1.0)
        signal.raise_signal(signal.SIGINT)
        ask(run)
    assert identity.read_run(run.directory)["status"] == "KILLED"


def test_a_signal_before_a_checkpoint_stops_with_that_checkpoint(cfg):
    model = torch.nn.Linear(1, 1)
    with pytest.raises(KeyboardInterrupt), daypoint.open_run(cfg) as run:
        run.restore(model=model)
        run.log(loss=1.0)
        signal.raise_signal(signal.SIGINT)
        run.save(model=model)
        raise AssertionError("it went on")
    assert [path.name for path in (run.directory / "checkpoints").glob("step*")] == ["step000001"]


def test_a_step_that_mlflow_cannot_hold_is_refused(cfg):
    with daypoint.open_run(cfg) as run, pytest.raises(ScalarError, match="step"):
        run.log(loss=1.0, step=2**63)


def test_an_exception_that_cannot_be_said_does_not_hide_the_end(cfg):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    with pytest.raises(Mute), daypoint.open_run(cfg) as run:
        raise Mute
    assert identity.read_run(run.directory)["status"] == "FAILED"


def test_a_rank_without_a_world_is_no_rank(cfg, monkeypatch):
    monkeypatch.setenv("RANK", "8")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with daypoint.open_run(cfg) as run:
        run.log(loss=1.0)
    assert len(events(run, "batch")) == 1


@pytest.mark.parametrize(
    "text", ["7e12", "1e3", "12E5", "2026-03-28", "x\x85y", "0x10", "-", "~", "null", "a: b", "a\nb"]
)
def test_text_in_the_config_file_stays_text(cfg, text):
    with daypoint.open_run({**cfg, "text": text}) as run:
        pass
    assert OmegaConf.load(run.directory / f"config_{run.day}.yaml").text == text


def test_ending_after_so_many_batches_costs_other_runs_nothing(tmp_path):
    cfg = {"tracking": {"enabled": False, "outputs": str(tmp_path)}}
    with daypoint.open_run(cfg, quiet=True) as run:
        assert "log" not in vars(run)
        run.log(loss=1.0)
    assert identity.read_run(run.directory)["reproduces"] is None


def test_a_value_without_a_name_is_refused_with_the_way_to_name_it(cfg):
    with daypoint.open_run(cfg) as run:
        for log in (run.log, run.log_epoch):
            with pytest.raises(
                ScalarError,
                match=r"log: expected scalars by name, found Tensor; name it: run\.log\(loss=loss\)",
            ):
                log(torch.tensor(1.0))
        run.log(loss=1.0)
    assert len(events(run, "batch")) == 1


def test_a_name_that_reads_like_markup_does_not_stop_the_bar(cfg, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if this were a terminal
    with daypoint.open_run(cfg) as run:
        for _ in run.epochs(1, batches=2):
            run.log({"mAP[/0.5]": 0.25})
    assert "mAP[/0.5] 0.25" in capsys.readouterr().err


def test_the_next_commands_can_be_typed_when_the_paths_have_spaces(tmp_path):
    root = tmp_path / "My Project"
    root.mkdir()
    (root / "pyproject.toml").touch()
    settings = {"enabled": False, "outputs": "my runs"}
    (root / "script.py").write_text(
        f"import daypoint\nwith daypoint.open_run({{'tracking': {settings}}}): pass\n"
    )
    done = subprocess.run(
        [sys.executable, root / "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (run,) = (root / "my runs").glob("*/*")
    assert f"  cd '{root}' " in done.stdout
    assert f"  daypoint show '{run}' " in done.stdout
    assert f"  daypoint ls {run.parent.name} --outputs '{root / 'my runs'}' " in done.stdout


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"mode": "minimize"}, r"mode: expected min, max or None, found 'minimize'"),
        ({"monitor": 3}, r"monitor: expected the name of a metric, found 3"),
        ({"keep": 0}, r"keep: expected a number of checkpoints from 1"),
        ({"keep": "2"}, r"keep: expected a number of checkpoints from 1"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_before_there_is_a_run(cfg, tmp_path, choice, message):
    with pytest.raises(ConfigError, match=message), daypoint.open_run(cfg, **choice):
        raise AssertionError("it was opened")
    assert not list(tmp_path.rglob("run.json"))


def test_the_end_of_a_run_is_recorded_whatever_bytes_are_in_its_error(cfg):
    with pytest.raises(ValueError, match="cannot read"), daypoint.open_run(cfg) as run:
        raise ValueError(f"cannot read {os.fsdecode(bytes([100, 255]))}")
    (end,) = events(run, "end")
    assert end["error"] == "ValueError: cannot read d\\udcff"


def test_ctrl_c_before_the_first_validation_is_no_word_about_the_monitor(cfg, capsys):
    model = torch.nn.Linear(2, 1)
    with pytest.raises(KeyboardInterrupt), daypoint.open_run(cfg, monitor="val/loss") as run:
        run.restore(model=model)
        for _ in run.epochs(2):
            run.log(loss=1.0)
            signal.raise_signal(signal.SIGINT)
            run.log(loss=1.0)
    captured = capsys.readouterr()
    assert "stopping after this step" in captured.out + captured.err
    assert "no metric of that name" not in captured.out + captured.err
