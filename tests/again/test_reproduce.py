"""Reproduce: a training run again from its record alone, in processes of its own, as a user does it."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from projects import make_project

from daypoint.base import files
from daypoint.base.errors import AddressError
from daypoint.models import load
from daypoint.record import catalog, identity
from daypoint.run import provenance

# A training in miniature, with nothing of train.py's: any script will do whose config Hydra composes.
APP = """
import random, time
import hydra
import daypoint

daypoint.register_configs()

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    random.seed(cfg.seed)
    with daypoint.open_run(cfg, quiet=True) as run:
        for epoch in run.epochs(cfg.epochs):
            for _ in range(5):
                run.log(loss=random.random() * cfg.scale, noise=random.random())
            run.log_epoch(val=random.random())

if __name__ == "__main__":
    main()
"""
CONFIG = """
defaults: [daypoint, _self_]
seed: 7
epochs: 2
scale: 0.5
tracking: {enabled: false}
"""


@pytest.fixture
def app(tmp_path):
    """A project with app.py, a run of it, and no train.py."""
    project = make_project(tmp_path / "app")
    (project.root / "train.py").unlink()
    shutil.rmtree(project.root / "conf")
    (project.root / "conf").mkdir()
    (project.root / "conf" / "config.yaml").write_text(CONFIG)
    (project.root / "app.py").write_text(APP)
    return project


def original(project, *overrides, script="app.py", **options):
    """A new run of the script."""
    project.python(project.root / script, *overrides, **options)
    return newest(project)


def newest(project):
    return catalog.read(project.runs()[-1], project.outputs)


def reproduce(project, *arguments, code=0, **options):
    """`daypoint reproduce …`, which must end with that exit code."""
    done = project.daypoint("reproduce", *arguments, check=False, **options)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def edit(run, change):
    """Change run.json as an editor would."""
    record = identity.read_run(run.directory)
    change(record)
    identity.write_run(run.directory, record)


def git(project, *arguments):
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *who, *arguments], cwd=project.root, check=True, capture_output=True)


# ---------------------------------------------------------------- the promise


def test_a_run_is_reproduced_as_a_new_run_that_says_so(app):
    run = original(app)
    done = reproduce(app, run.address)
    made = newest(app)
    assert "identical: 10 batches, 3 metrics, 22 values" in done.stdout
    assert made.directory != run.directory
    assert made.directory.parent.parent == app.outputs
    assert made.status == "FINISHED"
    told = made.record["reproduces"]
    assert (told["uid"], told["address"], told["day"]) == (run.record["uid"], run.address, run.record["day"])
    assert f"reproduces {run.address}" in app.daypoint("ls").stdout
    assert run.record["uid"] in app.daypoint("show", made.address).stdout


def test_reproducing_changes_nothing_of_the_original(app):
    run = original(app)
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    reproduce(app, run.address)
    assert {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()} == before


def test_what_was_evaluated_is_not_evaluated_again(app):
    run = original(
        app, "+at='${now:%H:%M:%S.%f}'", "+who='${oc.env:WHO}'", r"+text='\${oc.env:WHO}'", WHO="ada"
    )
    reproduce(app, run.address, WHO="eve")
    config = newest(app).record["config"]
    assert config["who"] == "ada"
    assert config["text"] == "${oc.env:WHO}"
    assert config["at"] == run.record["config"]["at"]


def test_todays_conf_does_not_matter(app):
    run = original(app, "scale=3.0")
    (app.root / "conf" / "config.yaml").write_text(CONFIG.replace("0.5", "0.9").replace("7", "8"))
    assert "identical" in reproduce(app, run.address).stdout
    shutil.rmtree(app.root / "conf")
    assert "identical" in reproduce(app, run.address).stdout


def test_a_project_that_was_moved_still_reproduces_from_anywhere(app, tmp_path):
    run = original(app)
    moved = tmp_path / "moved"
    app.root.rename(moved)
    app.root = moved
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    reproduce(app, run.address, "--outputs", app.outputs, cwd=elsewhere)
    assert newest(app).record["reproduces"]["uid"] == run.record["uid"]
    assert newest(app).directory.is_relative_to(moved)


def test_it_starts_in_the_directory_in_which_the_original_did(app):
    (app.root / "app.py").write_text(APP.replace("cfg.scale", "float(open(cfg.path).read())"))
    (app.root / "data").mkdir()
    (app.root / "data" / "scale.txt").write_text("0.25")
    run = original(app, "+path=scale.txt", cwd=app.root / "data")
    assert "identical" in reproduce(app, run.address, cwd=app.root / "conf").stdout


def test_a_script_that_knows_nothing_of_daypoints_hydra_settings_will_do_too(app):
    (app.root / "app.py").write_text(APP.replace("daypoint.register_configs()", ""))
    (app.root / "conf" / "config.yaml").write_text(CONFIG.replace("[daypoint, _self_]", "[_self_]"))
    app.python("app.py")
    directory = next(path.parent for path in app.outputs.rglob("run.json"))
    assert "identical" in reproduce(app, directory).stdout
    assert len(app.runs()) == 1


def test_a_script_that_is_started_as_a_module_is_started_so_again(app):
    package = app.root / "mine"
    package.mkdir()
    (package / "scale.py").write_text("factor = 2.0\n")
    text = APP.replace("import hydra\n", "import hydra\nfrom .scale import factor\n").replace(
        "cfg.scale", "factor"
    )
    (package / "train.py").write_text(text.replace('"conf"', '"../conf"'))
    app.python("-m", "mine.train")
    assert "identical" in reproduce(app, newest(app).address).stdout


def test_a_reproduction_can_be_reproduced(app):
    run = original(app)
    reproduce(app, run.address, "--steps", "3")
    made = newest(app)
    done = reproduce(app, made.address)
    assert "identical: 3 batches" in done.stdout
    assert newest(app).record["reproduces"]["uid"] == made.record["uid"]


def test_what_a_job_of_a_sweep_draws_does_not_hang_on_the_jobs_before_it(app):
    app.python("app.py", "-m", "scale=0.5,0.6")
    first, second = (catalog.read(directory, app.outputs) for directory in app.runs())
    for job in (first, second):
        assert "identical" in reproduce(app, job.address).stdout
    reproduce(app, first.address, "--against", second.address, code=1)


def test_classes_of_the_project_may_be_named_if_its_pyproject_lists_them(app):
    (app.root / "mine.py").write_text("class Net: pass\n")
    run = original(app, "+model._target_=mine.Net")
    assert 'allow = ["mine.Net"]' in reproduce(app, run.address, code=2).stderr
    (app.root / "pyproject.toml").write_text('[tool.daypoint]\nallow = ["mine"]\n')
    assert "identical" in reproduce(app, run.address).stdout


# ---------------------------------------------------------------- what differs


def test_changed_code_is_warned_of_before_and_named_after(app):
    git(app, "init", "-q")
    git(app, "add", "app.py", "conf", "pyproject.toml")
    git(app, "commit", "-qm", "first")
    run = original(app)
    (app.root / "app.py").write_text(APP.replace("* cfg.scale", "* cfg.scale * (1 + 1e-9 * epoch)"))
    git(app, "commit", "-qam", "second")
    done = reproduce(app, run.address, code=1)
    commit = run.record["git"]["commit"]
    assert f"git checkout {commit}" in done.stderr
    assert "different: 10 batches" in done.stdout
    assert "first at step 5:\n  loss: was" in done.stdout
    assert "never differ: noise, val" in done.stdout
    assert f"code: the commit was {commit[:12]}, now" in done.stdout


def test_uncommitted_changes_are_named_too(app):
    git(app, "init", "-q")
    git(app, "add", "app.py", "conf", "pyproject.toml")
    git(app, "commit", "-qm", "first")
    run = original(app)
    (app.root / "app.py").write_text(APP.replace("cfg.seed", "cfg.seed + 1"))
    done = reproduce(app, run.address, code=1)
    assert "warning: code: uncommitted changes were none, now those with sha256" in done.stderr
    assert (
        f"to have it as it was (commit {run.record['git']['commit'][:12]} with nothing else): " in done.stderr
    )
    assert "commit or move what is not committed now (app.py)\n" in done.stderr
    assert "stash" not in done.stderr
    for name in "abcd":
        (app.root / f"new_{name}.py").touch()
    (app.root / "a.png").touch()
    done = reproduce(app, run.address, code=1)
    assert "not committed now (app.py, new_a.py, new_b.py and 3 more)\n" in done.stderr
    assert "uncommitted changes were none, now" in done.stdout


def test_an_override_is_applied_and_named_as_the_reason(app):
    run = original(app)
    done = reproduce(app, run.address, "scale=0.75", code=1)
    assert "config: scale was 0.5, now 0.75" in done.stdout


def test_a_metric_that_measures_time_is_left_out_on_request_only(app):
    (app.root / "app.py").write_text(APP.replace("noise=random.random()", "noise=time.perf_counter()"))
    run = original(app)
    done = reproduce(app, run.address, code=1)
    assert "metrics that measure time never repeat: --ignore noise" in done.stdout
    done = reproduce(app, run.address, "--ignore", "noise")
    assert "not compared: noise, 10 values" in done.stdout


def test_saved_uncommitted_changes_are_offered_for_git_apply(app):
    git(app, "init", "-q")
    git(app, "add", "app.py", "conf", "pyproject.toml")
    git(app, "commit", "-qm", "first")
    (app.root / "app.py").write_text(APP.replace("cfg.seed", "cfg.seed + 1"))
    run = original(app)
    run.files.uncommitted_diff().write_bytes(provenance.inspect(app.root)[1])
    git(app, "checkout", "app.py")
    done = reproduce(app, run.address, code=1)
    assert f"git apply {run.files.uncommitted_diff()}" in done.stderr
    git(app, "apply", str(run.files.uncommitted_diff()))
    done = reproduce(app, run.address)
    assert "warning" not in done.stderr


# ---------------------------------------------------------------- how much is compared


def test_steps_ends_the_new_run_well_right_after_them(app):
    run = original(app)
    done = reproduce(app, run.address, "--steps", "7")
    made = newest(app)
    assert (made.status, made.steps) == ("FINISHED", 7)
    assert "identical: 7 batches, 3 metrics, 15 values" in done.stdout
    assert "compared: the first 7 batches (--steps)" in done.stdout


@pytest.mark.parametrize("again", ["FINISHED", "FAILED"])
def test_a_run_that_failed_is_reproduced_up_to_where_it_came(app, again):
    broken = APP.replace("run.log(loss", "1 / (6 - run.step)\n                run.log(loss")
    (app.root / "app.py").write_text(broken)
    app.python("app.py", check=False)
    assert newest(app).status == "FAILED"
    (app.root / "app.py").write_text(broken if again == "FAILED" else APP)
    done = reproduce(app, newest(app).address)
    assert "compared: the first 6 batches (it was FAILED after them)" in done.stdout
    assert "identical: 6 batches" in done.stdout
    assert newest(app).status == again


@pytest.mark.slow
def test_a_run_that_was_changed_when_it_was_resumed_is_reproduced_up_to_the_change(project):
    common = ("model=linear", "data.batch_size=512", "tracking=off")
    project.train(*common, "trainer.epochs=2")
    run = newest(project)
    project.train("resume=last", "trainer.epochs=3", "optimizer.lr=0.1", "tracking=off")
    done = reproduce(project, run.address)
    assert (
        "compared: the first 6 batches (its hyperparameters were changed when it was resumed at step 6)"
        in (done.stdout)
    )
    assert "weights: identical in step000003, step000006" in done.stdout
    assert newest(project).record["config"]["optimizer"]["lr"] == run.record["config"]["optimizer"]["lr"]


def test_two_runs_that_are_there_are_compared_without_running(app):
    first, second, third = original(app), original(app), original(app, "seed=8")
    reproduce(app, first.address, "--against", second.address)
    done = reproduce(app, first.address, "--against", third.address, code=1)
    assert "config: seed was 7, now 8" in done.stdout
    assert len(app.runs()) == 3


def test_json_is_all_that_is_on_stdout(app):
    run = original(app)
    (app.root / "app.py").write_text(APP.replace("main(cfg):", "main(cfg):\n    print('hello')"))
    done = reproduce(app, run.address, "--json")
    document = json.loads(done.stdout)
    assert document["identical"] is True
    assert document["original"] == run.address
    assert document["run"] == newest(app).address
    assert "hello" in done.stderr


# ---------------------------------------------------------------- what cannot be run


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["config"].update(evil={"_target_": "os.system", "command": "touch pwned"}),
        lambda record: record["config"].update(evil=[{"deep": {"_target_": "builtins.exec"}}]),
        lambda record: record["references"].update(seed="oc.env:HOME"),
        lambda record: record["attempts"][0].update(argv=["../evil.py"]),
        lambda record: record["attempts"][0].update(argv=["/bin/sh"], root="/"),
    ],
    ids=["target", "deep", "reference", "script", "absolute"],
)
def test_a_hostile_record_is_refused_before_anything_runs(app, change):
    run = original(app)
    (app.root.parent / "evil.py").write_text("open('pwned', 'w')")
    edit(run, change)
    (app.root / "app.py").write_text("open('pwned', 'w')")
    done = reproduce(app, run.address, code=2)
    assert done.stderr.startswith("error: ")
    assert not list(app.root.parent.rglob("pwned"))
    assert len(app.runs()) == 1


def test_what_speaks_to_hydra_is_not_taken_from_a_record(app):
    run = original(app)
    callback = {"evil": {"_target_": "os.system", "command": "touch pwned"}}
    edit(run, lambda record: record["config"].update(hydra={"callbacks": callback}, defaults=["nowhere"]))
    reproduce(app, run.address)
    assert not list(app.root.rglob("pwned"))


def test_a_config_other_than_the_sealed_one_is_refused(project):
    project.train("model=linear", "data.batch_size=512", "tracking=off", "trainer.epochs=1")
    run = newest(project)
    edit(run, lambda record: record["config"]["optimizer"].update(lr=1.0))
    done = reproduce(project, run.address, code=2)
    assert "optimizer.lr is 0.005 in the card, 1.0 in run.json" in done.stderr


def test_a_script_without_hydra_cannot_be_given_a_config(app):
    script = "import daypoint\nwith daypoint.open_run({'tracking': {'enabled': False}}) as run: run.log(loss=1.0)\n"
    (app.root / "plain.py").write_text(script)
    run = original(app, script="plain.py")
    done = reproduce(app, run.address, code=2)
    assert f"daypoint reproduce {run.address} --against last" in done.stderr
    original(app, script="plain.py")
    reproduce(app, run.address, "--against", "last")


def test_a_script_that_is_gone_can_be_named(app):
    run = original(app)
    (app.root / "app.py").rename(app.root / "other.py")
    assert "--script PATH" in reproduce(app, run.address, code=2).stderr
    assert "identical" in reproduce(app, run.address, "--script", "other.py").stdout


def test_a_script_that_fails_is_no_difference_but_an_error_and_leaves_no_empty_run(app):
    run = original(app)
    (app.root / "app.py").write_text(APP.replace("random.seed(", "raise ZeroDivisionError("))
    done = reproduce(app, run.address, code=2)
    assert "expected a run in" in done.stderr
    assert len(list(run.directory.parent.iterdir())) == 1


def test_an_address_of_nothing_cannot_be_run(app):
    original(app)
    assert "it names no run" in reproduce(app, "19990101", code=2).stderr
    assert reproduce(app, "last", "--steps", "0", code=2).stderr


# ---------------------------------------------------------------- secrets


def test_a_hidden_value_comes_from_the_config_of_today_and_is_written_nowhere(app):
    config = app.root / "conf" / "config.yaml"
    config.write_text(CONFIG + "login: {password: '${oc.env:DB_PASSWORD}'}\n")
    (app.root / "app.py").write_text(
        APP.replace("cfg.scale", "int.from_bytes(cfg.login.password.encode()) / 2**200")
    )
    run = original(app, DB_PASSWORD="hunter2hunter2")
    assert run.record["config"]["login"]["password"] == "***"
    assert "identical" in reproduce(app, run.address, DB_PASSWORD="hunter2hunter2").stdout
    for path in app.outputs.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


def test_a_hidden_value_that_is_nowhere_is_asked_for(app):
    (app.root / "app.py").write_text(APP.replace("cfg.scale", "len(cfg.password)"))
    run = original(app, "+password=hunter2hunter2")
    done = reproduce(app, run.address, code=2)
    assert "password: hidden in the record (***)" in done.stderr
    reproduce(app, run.address, "password=${oc.env:DB_PASSWORD}", DB_PASSWORD="hunter2hunter2")


# ---------------------------------------------------------------- train.py

HARD = (
    "model.dropout=0.3",
    "trainer.epochs=2",
    "trainer.accumulate=2",
    "trainer.clip_norm=1.0",
    "trainer.precision=bf16",
    "data.batch_size=256",
)


def test_train_py_is_reproduced_to_the_last_bit_and_does_not_become_the_days_model(project):
    cold = {"cold": True}  # nothing is shared, not even the order of a set
    project.train("trainer.epochs=1", "model.dropout=0.3", "data.batch_size=256", "tracking=off", **cold)
    run = newest(project)
    done = reproduce(project, run.record["day"], **cold)
    assert "identical: 6 batches, 4 metrics" in done.stdout
    assert "weights: identical in step000006" in done.stdout
    made = newest(project)
    assert made.record["experiment"] == run.record["experiment"]
    assert made.record["config_sha256"] == run.record["config_sha256"]
    assert load.choose("today", project.outputs).run.directory == run.directory


@pytest.mark.slow
@pytest.mark.parametrize("more", [HARD, (*HARD[:2], "model=cnn", "optimizer=sgd", "scheduler=onecycle")])
def test_train_py_with_all_that_is_random_or_rounded_is_reproduced(project, more):
    project.train(*more, "tracking=off")
    done = reproduce(project, newest(project).address)
    assert "weights: identical in step" in done.stdout


def test_a_day_of_reproductions_only_has_no_model_of_its_own(app, tmp_path):
    run = original(app)
    reproduce(app, run.address)
    shutil.rmtree(run.directory)
    with pytest.raises(AddressError, match=r"\(a reproduction\) FINISHED"):
        load.choose("today", app.outputs)


@pytest.mark.slow
def test_other_data_is_named_as_the_reason(project):
    table = project.root / "table.csv"
    rows = [f"{i % 7},{i % 5},{(i % 7) * 0.5 - (i % 5)}" for i in range(120)]
    table.write_text("\n".join(["a,b,y", *rows]) + "\n")
    project.train("data=table", "data.path=table.csv", "data.target=y", "trainer.epochs=1", "tracking=off")
    run = newest(project)
    assert "identical" in reproduce(project, run.address, cwd=project.root / "conf").stdout
    rows += ["3,4,9.0"] * 40
    table.write_text("\n".join(["a,b,y", *rows]) + "\n")
    done = reproduce(project, run.address, code=1)
    assert "data: rows was" in done.stdout
    assert "data: fingerprint was" in done.stdout


@pytest.mark.slow
def test_a_job_of_a_sweep_is_reproduced_on_its_own(project):
    project.train("-m", "optimizer.lr=0.01,0.02", "trainer.epochs=1", "model.dropout=0.2", "tracking=off")
    for job in (catalog.read(directory, project.outputs) for directory in project.runs()):
        assert "identical" in reproduce(project, job.address).stdout
        assert newest(project).record["config"]["optimizer"]["lr"] == job.record["config"]["optimizer"]["lr"]


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_is_equal_as_a_whole(project):
    overrides = ("trainer.epochs=40", "model.dropout=0.2", "tracking=off")
    process = project.start(project.root / "train.py", *overrides, cold=True)
    end = time.monotonic() + 60
    while not list(project.outputs.glob("*/*/checkpoints/step*")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    project.train("resume=last", "tracking=off")
    run = newest(project)
    assert len(run.record["attempts"]) == 2
    done = reproduce(project, run.address)
    assert re.search(r"identical: 920 batches", done.stdout)
    assert "weights: identical in" in done.stdout


@pytest.mark.slow
def test_a_training_of_several_ranks_is_reproduced_with_as_many(app):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    app.python(*torchrun, "app.py")
    run = newest(app)
    assert "identical: 6 batches" in reproduce(app, run.address, "--steps", "6").stdout
    assert newest(app).record["ranks"] == 2


@pytest.mark.slow
def test_mlflow_shows_which_run_is_reproduced(project):
    from stores import rows

    project.train("trainer.epochs=1")
    run = newest(project)
    reproduce(project, run.address)
    found = rows(project, "SELECT value FROM tags WHERE key = 'daypoint.reproduces'")
    assert found == [(run.address,)]


def test_ctrl_c_ends_the_new_run_with_a_word(app):
    (app.root / "app.py").write_text(
        APP.replace("random.seed(", "time.sleep(cfg.get('wait', 0))\n    random.seed(")
    )
    run = original(app, "epochs=1")
    text = (app.root / "app.py").read_text()
    (app.root / "app.py").write_text(text.replace("for _ in range(5):", "for _ in range(10**9):"))
    # Not a warm one: for Ctrl-C all processes are one group.
    process = app.start("-m", "daypoint", "reproduce", run.address, cold=True)
    end = time.monotonic() + 60
    while len(app.runs()) < 2:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 2, output
    assert "the run again was KILLED after" in output
    assert files.loads((newest(app).directory / "run.json").read_bytes())["status"] == "KILLED"


def test_of_a_day_with_two_experiments_the_command_line_asks_which(project):
    for name in ("one", "two"):
        project.train("model=linear", "trainer.epochs=1", f"tracking.experiment={name}")
    refused = project.daypoint("reproduce", "today", check=False)
    assert refused.returncode == 2
    assert "found one, two; say which with --experiment NAME, or give the address" in refused.stderr
    done = project.daypoint("reproduce", "today", "--experiment", "one", "--steps", "2")
    assert "identical: 2 batches" in done.stdout
