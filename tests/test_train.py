"""The main job, run as a user runs it: train.py in a process of its own, a real SQLite store, real signals."""

import json
import os
import re
import signal
import subprocess

import numpy as np
import orjson
import pytest
from projects import make_project
from stores import mlflow_run, rows
from waiting import until

from daypoint.base import files
from daypoint.record import identity, journal


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project after `python train.py`, the run directory, and what was printed."""
    project = make_project(tmp_path_factory.mktemp("trained") / "project")
    done = project.train(cold=True)
    (directory,) = project.runs()
    return project, directory, done.stdout


# ---------------------------------------------------------------- the main job


def test_the_main_job_reaches_the_accuracy_that_is_promised(trained):
    _, directory, _ = trained
    log = orjson.loads(next(directory.glob("train_log_*.json")).read_bytes())
    assert log["epochs"][-1]["metrics"]["val/accuracy"] >= 0.95


def test_it_ends_by_saying_where_everything_is_and_what_to_type_next(trained):
    _, directory, output = trained
    assert str(directory) in output
    assert re.search(r"status +FINISHED", output)
    assert "val/accuracy" in output
    assert "experiment digits" in output
    for command in ("daypoint show", "daypoint ls", "daypoint ui"):
        assert command in output


def test_the_next_commands_work_as_printed(trained):
    project, directory, output = trained
    for line in re.findall(r"^  daypoint ((?:show|ls) .*?) +#", output, re.MULTILINE):
        shown = project.daypoint(*line.split()).stdout
        assert f"{directory.parent.name}/{directory.name}" in shown
        assert "FINISHED" in shown


def test_every_batch_reaches_mlflow_with_its_step_time_and_value(trained):
    project, directory, _ = trained
    run, _ = mlflow_run(project, directory)
    batches = [e for e in journal.read(directory / "journal.jsonl").events if e["event"] == "batch"]
    assert len(batches) == 20 * 23
    for name in ("loss", "lr"):
        stored = rows(
            project,
            "SELECT step, timestamp, value FROM metrics WHERE run_uuid=? AND key=? ORDER BY step",
            run,
            name,
        )
        assert stored == [(b["step"], b["time"], b["metrics"][name]) for b in batches]
    kinds = rows(project, "SELECT DISTINCT typeof(step), typeof(value) FROM metrics WHERE run_uuid=?", run)
    assert kinds == [("integer", "real")]


def test_the_epoch_statistics_are_those_of_the_batches(trained):
    project, directory, _ = trained
    run, _ = mlflow_run(project, directory)
    batches = [e for e in journal.read(directory / "journal.jsonl").events if e["event"] == "batch"]
    losses = np.array([b["metrics"]["loss"] for b in batches]).reshape(20, 23)
    for statistic, expected in {
        "mean": losses.mean(1),
        "variance": losses.var(1),
        "min": losses.min(1),
        "max": losses.max(1),
    }.items():
        key = f"epoch/loss/{statistic}"
        stored = rows(project, "SELECT value FROM metrics WHERE run_uuid=? AND key=? ORDER BY step", run, key)
        np.testing.assert_allclose([value for (value,) in stored], expected, rtol=1e-12)


def test_the_run_in_mlflow_says_who_it_is(trained):
    project, directory, _ = trained
    run, status = mlflow_run(project, directory)
    record = identity.read_run(directory)
    tags = dict(rows(project, "SELECT key, value FROM tags WHERE run_uuid=?", run))
    params = dict(rows(project, "SELECT key, value FROM params WHERE run_uuid=?", run))
    assert status == "FINISHED"
    assert tags["date"] == directory.parent.name
    assert tags["mlflow.runName"] == record["name"]
    assert tags["host"] == record["host"]
    assert tags["device"] == "cpu"
    assert params["optimizer.lr"] == str(record["config"]["optimizer"]["lr"])
    assert params["data.input_shape"] == "[1, 8, 8]"
    assert {key.partition(".")[0] for key in params} >= {
        "data",
        "model",
        "loss",
        "optimizer",
        "scheduler",
        "trainer",
    }
    assert rows(project, "SELECT name, digest FROM datasets") == [("digits", record["data"]["fingerprint"])]


def test_the_train_log_and_the_config_are_artifacts(trained):
    project, directory, _ = trained
    run, _ = mlflow_run(project, directory)
    ((uri,),) = rows(project, "SELECT artifact_uri FROM runs WHERE run_uuid=?", run)
    assert uri.startswith(str(project.root / "mlruns" / "artifacts"))
    day = directory.parent.name
    for name in (f"train_log_{day}.json", f"config_{day}.yaml"):
        (artifact,) = files.Path(uri).rglob(name)
        assert artifact.read_bytes() == (directory / name).read_bytes()


def test_jq_and_a_strict_parser_read_every_line(trained):
    def refuse(name):
        raise AssertionError(name)

    _, directory, _ = trained
    for line in (directory / "journal.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    for path in directory.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


def test_no_file_of_a_run_is_a_pickle(trained):
    _, directory, _ = trained
    for path in directory.rglob("*"):
        if path.is_file():
            head = path.read_bytes()[:4]
            assert head[:1] != b"\x80", f"{path} looks like a pickle"
            assert head[:2] != b"PK", f"{path} looks like a torch.save archive"


@pytest.mark.slow
def test_the_same_command_again_gives_the_same_numbers_in_another_directory(trained):
    project, directory, _ = trained
    project.train("trainer.epochs=20", cwd=project.root.parent)  # from another working directory
    first, second = project.runs()
    assert first == directory
    values = [
        [e["metrics"] for e in journal.read(run / "journal.jsonl").events if e["event"] == "batch"]
        for run in (first, second)
    ]
    assert values[0] == values[1]
    assert len(rows(project, "SELECT 1 FROM experiments WHERE name='digits'")) == 1


# ---------------------------------------------------------------- what is told on the command line


def test_a_sweep_gives_each_job_its_directory_and_its_mlflow_run(project):
    project.train(
        "-m", "optimizer.lr=0.1,0.01", "model=linear,mlp", "trainer.epochs=1", "data.batch_size=256"
    )
    runs = project.runs()
    assert [run.name for run in runs] == ["0", "1", "2", "3"]
    assert runs[0].parent.name.startswith("sweep-")
    seen = set()
    for run in runs:
        mlflow_id, status = mlflow_run(project, run)
        assert status == "FINISHED"
        params = dict(rows(project, "SELECT key, value FROM params WHERE run_uuid=?", mlflow_id))
        seen.add((params["optimizer.lr"], params["model._target_"].rpartition(".")[2]))
    assert len(seen) == 4


@pytest.mark.slow
def test_values_with_slashes_and_brackets_keep_job_directories_flat(project):
    long = "x" * 300
    project.train("-m", f"+note=a/b,'[1,2]',{long}", "tracking=off", "trainer.epochs=0")
    runs = project.runs()
    assert [run.name for run in runs] == ["0", "1", "2"]
    assert identity.read_run(runs[2])["config"]["note"] == long


def test_a_users_own_model_and_table_need_no_change_here(project):
    (project.root / "my_package.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, inputs: int, outputs: int):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(inputs, outputs)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n"
    )
    lines = [f"{i},{i % 7},{2 * i + 1}.5" for i in range(64)]
    (project.root / "my.csv").write_text("\n".join(["a,b,y", *lines]))
    (project.root / "conf" / "model" / "mine.yaml").write_text(
        "_target_: my_package.Net\ninputs: 2\noutputs: ${data.outputs}\n"
    )
    project.train(
        "model=mine", "data=table", "data.path=my.csv", "data.target=y", "tracking=off", "trainer.epochs=2"
    )
    (run,) = project.runs()
    record = identity.read_run(run)
    assert record["config"]["data"]["task"] == "regression"
    assert record["monitor"] == {"metric": "val/loss", "mode": "min"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.lrr=0.1"], r"optimizer\.lrr"),
        (["optimizer.lr=abc"], r"optimizer\.lr: expected float"),
        (["optimizer.lr=${nothing}"], r"error: optimizer\.lr: Interpolation key 'nothing' not found"),
        (["model=nothing"], r"Could not find 'model/nothing'"),
        (["data=table"], r"data\.path, data\.target: expected a value"),
        (["tracking.uri=./mlruns"], r"sqlite:///"),
        (["trainer.precision=fp8"], r"trainer\.precision: expected fp32"),
        (["data=table", "data.path=none.csv", "data.target=y"], r"none\.csv"),
    ],
)
def test_what_cannot_work_is_one_message_and_leaves_no_trace(project, overrides, message):
    done = project.train(*overrides, check=False)
    assert done.returncode != 0
    assert re.search(message, done.stderr + done.stdout)
    assert "Traceback" not in done.stderr
    assert not project.outputs.exists()
    assert not (project.root / "mlruns").exists()


def test_a_value_that_needs_quotes_is_refused_with_the_quotes(project):
    done = project.train("resume=out/epoch=1-step=2.ckpt", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: resume=out/epoch=1-step=2.ckpt: expected quotes around a value with such characters; "
        """write "resume='out/epoch=1-step=2.ckpt'"\n"""
    )


def test_an_interpolation_on_the_command_line_is_recorded_as_given_and_resolved_once(project):
    project.train("+seed=${trainer.seed}", "trainer.seed=7", "tracking=off", "trainer.epochs=0")
    record = identity.read_run(project.runs()[0])
    assert record["config"]["seed"] == 7
    assert record["attempts"][0]["overrides"][0] == "+seed=${trainer.seed}"


def test_an_interpolation_on_the_command_line_that_leads_nowhere_is_one_message(project):
    done = project.train("+seed=${nowhere}", "tracking=off", check=False)
    assert (done.returncode, done.stderr) == (1, "error: seed: Interpolation key 'nowhere' not found\n")
    assert project.runs() == []


def test_debug_shapes_prints_the_table_and_leaves_no_run(project):
    done = project.train("debug=shapes", "model=cnn")
    assert "Conv2d" in done.stdout
    assert "10" in done.stdout
    assert not project.outputs.exists()


def test_the_last_batches_of_an_epoch_weigh_as_much_as_others_when_gradients_are_added(project):
    project.train(
        "data=linear", "data.rows=40", "data.batch_size=8", "model=linear", "optimizer=sgd", "scheduler=none",
        "trainer.epochs=1", "trainer.accumulate=3,100", "trainer.clip_norm=1000", "tracking=off", "-m",
    )  # fmt: skip
    three, all_at_once = (
        [e for e in journal.read(run / "journal.jsonl").events if e["event"] == "batch"]
        for run in project.runs()
    )
    assert [("grad_norm" in e["metrics"]) for e in three] == [False, False, True, True]
    (norm,) = (e["metrics"]["grad_norm"] for e in all_at_once if "grad_norm" in e["metrics"])
    assert norm == pytest.approx(three[2]["metrics"]["grad_norm"], rel=0.5)  # not a hundredth of it


def test_debug_shapes_of_a_model_that_fails_names_the_module_and_ends_with_1(project):
    (project.root / "my_models.py").write_text(
        "from torch import nn\n"
        "def make(outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(60, 5), nn.LazyLinear(outputs))\n"
    )
    (project.root / "conf" / "model" / "mine.yaml").write_text(
        "_target_: my_models.make\noutputs: ${data.outputs}\n"
    )
    done = project.train("debug=shapes", "model=mine", check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "error: 1 (Linear): failed on input [64, 64], after 0 returned" in done.stdout
    assert project.runs() == []


def test_a_directory_that_holds_a_run_is_refused_before_hydra_touches_it(project):
    directory = project.root / "D"
    project.train("tracking=off", "trainer.epochs=1", f"hydra.run.dir={directory}")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    done = project.train(
        "tracking=off", "trainer.epochs=1", f"hydra.run.dir={directory}", "optimizer.lr=2", check=False
    )
    assert done.returncode == 1
    assert "holds a run already" in done.stderr
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        ("torch.nn.CrossEntropyLoss(reduction='none')", r"loss: .*\(64,\).*float32.*cpu"),
        ("lambda x, y: torch.nn.functional.cross_entropy(x, y)[None]", r"loss: .*\(1,\)"),
        ("lambda x, y: torch.stack([x.mean(), x.std()])", r"loss: .*\(2,\)"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused_at_its_step(project, criterion, message):
    (project.root / "my_losses.py").write_text(f"import torch\ndef make():\n    return {criterion}\n")
    (project.root / "conf" / "loss" / "mine.yaml").write_text("_target_: my_losses.make\n")
    done = project.train("loss=mine", "tracking=off", check=False)
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert "grad can be implicitly created" not in done.stderr
    (run,) = project.runs()
    assert identity.read_run(run)["status"] == "FAILED"


@pytest.mark.slow
def test_changing_the_directory_by_hydra_changes_no_place(project):
    for _ in range(2):
        project.train("hydra.job.chdir=True", "trainer.epochs=1")
    assert len(project.runs()) == 2
    assert len(rows(project, "SELECT 1 FROM runs")) == 2
    assert list(project.root.rglob("*.db")) == [project.store]


# ---------------------------------------------------------------- bad ends


def started_training(project, *overrides, cold=False):
    """train.py in the background, some steps into its training: the process and its run directory."""
    process = project.start(project.root / "train.py", "trainer.epochs=100000", *overrides, cold=cold)

    def underway():
        assert process.poll() is None, process.stdout.read()
        runs = project.runs()
        return runs if runs and (runs[0] / "journal.jsonl").stat().st_size > 20000 else None

    (directory,) = until(underway, 60)
    return process, directory


def points_in_mlflow(project, directory):
    run, _ = mlflow_run(project, directory)
    return rows(project, "SELECT step, value FROM metrics WHERE run_uuid=? AND key='loss' ORDER BY step", run)


def points_in_journal(directory):
    batches = [e for e in journal.read(directory / "journal.jsonl").events if e["event"] == "batch"]
    return [(b["step"], b["metrics"]["loss"]) for b in batches]


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGTERM, {143}), (signal.SIGINT, {130, -2})])
def test_a_signal_ends_the_run_as_killed_and_loses_nothing(project, number, codes):
    process, directory = started_training(project)
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode in codes, output
    assert "Traceback" not in output
    assert re.search(
        rf"status +KILLED by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}, \d+ steps", output
    )
    address = f"{directory.parent.name}/{directory.name}"
    assert re.search(rf"next\n +python \S+/train.py resume={address} ", output)
    assert len(output[output.index("\nnext\n") :].splitlines()) <= 7  # nothing pushes that off the screen
    assert identity.read_run(directory)["status"] == "KILLED"
    assert mlflow_run(project, directory)[1] == "KILLED"
    assert points_in_mlflow(project, directory) == points_in_journal(directory)


def test_after_kill_9_the_courier_says_so_and_ships_the_rest(project):
    process, directory = started_training(project, cold=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    until(lambda: identity.read_run(directory)["status"] == "KILLED", 60)
    until(lambda: mlflow_run(project, directory)[1] == "KILLED", 60)
    assert points_in_mlflow(project, directory) == points_in_journal(directory)
    assert "KILLED" in project.daypoint("show", directory).stdout


def test_an_exception_is_failed_with_its_traceback(project):
    (project.root / "my_losses.py").write_text(
        "calls = []\ndef loss(x, y):\n    calls.append(1)\n    if len(calls) > 30: raise ValueError('thirty is enough')\n"
        "    return x.mean()\ndef make():\n    return loss\n"
    )
    (project.root / "conf" / "loss" / "mine.yaml").write_text("_target_: my_losses.make\n")
    done = project.train("loss=mine", check=False)
    assert done.returncode == 1
    (directory,) = project.runs()
    record = identity.read_run(directory)
    assert record["attempts"][0]["error"]["message"] == "thirty is enough"
    assert "my_losses.py" in record["attempts"][0]["error"]["traceback"]
    assert mlflow_run(project, directory)[1] == "FAILED"
    assert points_in_mlflow(project, directory) == points_in_journal(directory)


@pytest.mark.slow
def test_a_deleted_experiment_is_refused_before_training(project):
    project.train("trainer.epochs=1", "tracking.experiment=gone")
    script = (
        "import mlflow, sys; mlflow.set_tracking_uri(sys.argv[1]); "
        "mlflow.delete_experiment(mlflow.get_experiment_by_name('gone').experiment_id)"
    )
    project.python("-c", script, f"sqlite:///{project.store}")
    done = project.train("trainer.epochs=1", "tracking.experiment=gone", check=False)
    assert done.returncode == 1
    assert "'gone'" in done.stderr
    assert "restore" in done.stderr
    assert len(project.runs()) == 1


# ---------------------------------------------------------------- many at once


@pytest.mark.slow
def test_eight_first_runs_on_a_fresh_store_at_once_all_arrive(project):
    processes = [
        project.start(
            project.root / "train.py",
            "trainer.epochs=1",
            "model=linear",
            f"trainer.seed={i}",
            "tracking.wait_seconds=120",
        )
        for i in range(8)
    ]
    for process in processes:
        output = process.communicate(timeout=240)[0]
        assert process.returncode == 0, output
    runs = project.runs()
    assert len(runs) == 8
    assert {mlflow_run(project, run)[1] for run in runs} == {"FINISHED"}
    assert {identity.read_run(run)["config"]["trainer"]["seed"] for run in runs} == set(range(8))


def test_the_plain_script_without_hydra_works_and_files_its_run(project):
    example = files.Path(__file__).parent.parent / "examples" / "plain_script.py"
    (project.root / "my_script.py").write_text(example.read_text())
    done = project.python("my_script.py")
    assert "experiment my_script" in done.stdout
    (directory,) = project.runs()
    assert mlflow_run(project, directory)[1] == "FINISHED"
    assert len(points_in_mlflow(project, directory)) == 5 * 8


@pytest.mark.slow
def test_the_training_process_never_imports_mlflow(project):
    (project.root / "spy.py").write_text(
        "import runpy, sys\nsys.argv = ['train.py', 'trainer.epochs=1', 'model=linear']\n"
        "runpy.run_path('train.py', run_name='__main__')\nprint('mlflow imported:', 'mlflow' in sys.modules)\n"
    )
    assert "mlflow imported: False" in project.python("spy.py", cold=True).stdout


@pytest.mark.slow
def test_no_process_is_left_behind(project):
    project.train("trainer.epochs=1", "model=linear", cold=True)
    assert (
        str(project.root)
        not in subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout
    )


@pytest.mark.slow
def test_secrets_of_a_sweep_stand_in_no_file_and_not_on_the_screen(project):
    done = project.train(
        "-m", "+db.password=TOPSECRET", "model=linear,mlp", "trainer.epochs=0", "tracking=off"
    )
    assert len(project.runs()) == 2
    assert "+db.password=***" in done.stdout
    assert "TOPSECRET" not in done.stdout + done.stderr
    for path in project.outputs.rglob("*"):
        assert not path.is_file() or b"TOPSECRET" not in path.read_bytes(), path


@pytest.mark.parametrize("member", ["disabled", "none", "stdout", "default"])
def test_hydras_log_can_be_switched_off_and_an_empty_one_is_no_file(project, member):
    project.train(f"hydra/job_logging={member}", "model=linear", "trainer.epochs=0", "tracking=off")
    (run,) = project.runs()
    assert not (run / "train.log").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tracking=server"], r"tracking\.uri: expected the address of an MLflow server"),
        (["debug=foo"], r"debug: expected shapes or null, found 'foo'"),
    ],
)
def test_a_forgotten_server_address_or_a_wrong_debug_is_refused(project, overrides, message):
    done = project.train(*overrides, check=False)
    assert done.returncode == 1
    assert re.search(message, done.stderr + done.stdout)
    assert project.runs() == []


def test_tags_can_be_set_on_the_command_line(project):
    project.train("+tracking.tags.team=a", "trainer.epochs=0", "tracking.enabled=false")
    (run,) = project.runs()
    assert identity.read_run(run)["tags"] == {"team": "a"}


def test_an_override_is_recorded_as_it_was_given(project):
    project.train("+note=${data.name}", "trainer.epochs=0", "tracking.enabled=false")
    (run,) = project.runs()
    record = identity.read_run(run)
    assert record["attempts"][0]["overrides"][0] == "+note=${data.name}"
    assert record["config"]["note"] == "digits"
