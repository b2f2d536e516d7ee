"""Sweeps as a user runs them: one parent with its children, failures recorded and spared, and going on where it stopped."""

import contextlib
import os
import re
import signal
import sqlite3
import time

import pytest
from waiting import until

from daypoint.base import day, files
from daypoint.base.errors import AddressError, ConfigError, RunError
from daypoint.hydra.overrides import flag_repeated_keys
from daypoint.hydra.sweep import expand_resume
from daypoint.record import identity, sweep
from daypoint.tracking import parent

QUICK = ("-m", "data=linear", "data.rows=64", "trainer.epochs=1", "model=linear")


def manifest_of(project):
    (path,) = project.outputs.glob("*/sweep-*/sweep.json")
    return sweep.read(path.parent), path.parent


def statuses(manifest):
    return [job["status"] for _, job in sweep.jobs_of(manifest)]


def stored(project):
    """The runs in MLflow, by name: status, tags and params."""
    with contextlib.closing(sqlite3.connect(project.store)) as database:
        rows = database.execute(
            "SELECT run_uuid, name, status FROM runs ORDER BY start_time, name"
        ).fetchall()
        tags = {
            row[0]: dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", row[:1]))
            for row in rows
        }
        params = {
            r[0]: dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", r[:1]))
            for r in rows
        }
    return {uuid: (name, status, tags[uuid], params[uuid]) for uuid, name, status in rows}


def settled(project, count):
    """`stored`, once the couriers have closed so many runs."""
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(sqlite3.OperationalError):  # the store is being made
            runs = stored(project)
            if len(runs) == count and all(
                tags.get("daypoint.status") == status != "RUNNING" for _, status, tags, _ in runs.values()
            ):
                return runs
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_sweep_has_a_manifest_a_summary_and_a_parent_with_its_jobs_as_children(project):
    done = project.train(*QUICK, "optimizer.lr=0.1,0.01", "trainer.seed=0,1")
    manifest, directory = manifest_of(project)
    assert statuses(manifest) == ["FINISHED"] * 4
    assert manifest["space"] == {"optimizer.lr": ["0.1", "0.01"], "trainer.seed": ["0", "1"]}
    assert sweep.status_of(manifest) == "FINISHED"
    values = [job["value"] for _, job in sweep.jobs_of(manifest)]
    number, best = sweep.best(manifest)
    assert best["value"] == min(values)  # val/loss: less is better
    assert "over 2 seeds: val/loss" in done.stdout
    address = f"{directory.parent.name}/{directory.name}"
    assert f"sweep {address}" in done.stdout
    assert re.search(rf"^  daypoint plot {address} --values +#", done.stdout, re.M)
    assert re.search(rf"^  daypoint show {address}/{number} +#", done.stdout, re.M)
    assert re.search(
        r"^job +status +val/loss +overrides$", done.stdout, re.M
    )  # no column that repeats the job
    assert not re.search(r"^ +\d.* $", done.stdout, re.M)
    runs = settled(project, 5)
    ((parent_id, (name, status, tags, params)),) = [
        item for item in runs.items() if item[1][2].get("daypoint.kind") == "sweep"
    ]
    assert "sweep optimizer.lr × trainer.seed" in name
    assert status == "FINISHED"
    assert params == {"optimizer.lr": '["0.1", "0.01"]', "trainer.seed": '["0", "1"]'}
    assert (tags["jobs.finished"], tags["jobs.failed"]) == ("4", "0")
    assert tags["best.run"].endswith(f"/{number}")
    assert tags["best.optimizer.lr"] == best["overrides"][-2].partition("=")[2]
    assert "| job | status | value | overrides |" in tags["mlflow.note.content"]
    children = [tags for _, _, tags, _ in runs.values() if tags.get("daypoint.kind") != "sweep"]
    assert len(children) == 4
    assert {tags["mlflow.parentRunId"] for tags in children} == {parent_id}


def test_a_failing_job_is_recorded_spares_the_rest_and_is_listed(project):
    (project.root / "my_losses.py").write_text(
        "import sys\n\ndef make(how):\n    def loss(x, y):\n"
        "        if how == 'raises': raise ValueError('it cannot')\n"
        "        if how == 'exits': sys.exit(3)\n"
        "        return ((x - y) ** 2).mean()\n    return loss\n"
    )
    (project.root / "conf/loss/mine.yaml").write_text("_target_: my_losses.make\nhow: works\n")
    done = project.train(
        *QUICK,
        "loss=mine",
        "loss.how=raises,exits,works",
        "tracking=off",
        check=False,
        PYTHONPATH=project.root,
    )
    assert done.returncode == 1
    manifest, directory = manifest_of(project)
    assert statuses(manifest) == ["FAILED", "FAILED", "FINISHED"]
    assert sweep.status_of(manifest) == "FAILED"
    assert "job 0: ValueError: it cannot" in done.stdout
    assert "job 1: " in done.stdout
    assert "sys.exit(3)" in done.stdout
    assert f"sweep.resume={directory.parent.name}/{directory.name}" in done.stdout
    assert [identity.read_run(run)["status"] for run in project.runs()] == ["FAILED", "FAILED", "FINISHED"]
    # What made them fail is mended; only they run again.
    text = (project.root / "my_losses.py").read_text()
    (project.root / "my_losses.py").write_text(text.replace("how ==", "None =="))
    again = project.train("-m", "sweep.resume=last", PYTHONPATH=project.root)
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FINISHED"] * 3
    assert sorted(run.name for run in project.runs()) == ["0", "0-2", "1", "1-2", "2"]
    assert "job 0" not in again.stderr


def test_a_config_that_cannot_work_fails_its_job_only_in_one_line(project):
    done = project.train(*QUICK, "optimizer.lr=0.1,fast", "tracking=off", check=False)
    assert done.returncode == 1
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FINISHED", "FAILED"]
    assert "optimizer.lr: expected float" in manifest["jobs"]["1"]["error"]
    assert "Traceback" not in done.stderr
    assert len(project.runs()) == 1


def test_a_job_that_is_resumed_by_itself_is_worth_what_it_came_to(project):
    project.train(*QUICK, "optimizer.lr=0.1,0.01", "tracking=off")
    before, directory = manifest_of(project)
    address = f"{directory.parent.name}/{directory.name}/1"
    project.train(f"resume={address}", "trainer.epochs=3", "tracking=off")
    after, _ = manifest_of(project)
    assert after["jobs"]["0"] == before["jobs"]["0"]
    assert after["jobs"]["1"]["value"] < before["jobs"]["1"]["value"]
    assert after["jobs"]["1"]["status"] == "FINISHED"


def test_a_point_that_comes_twice_is_run_twice_and_flagged(project):
    done = project.train(*QUICK, "optimizer.lr=0.1,0.10", "tracking=off")
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FINISHED", "FINISHED"]
    assert len(project.runs()) == 2
    assert "warning: job 1 is the same point as job 0; it runs all the same" in done.stderr


def test_a_key_that_is_given_twice_is_flagged(project):
    done = project.train(*QUICK, "optimizer.lr=0.1,0.2", "optimizer.lr=0.3", "tracking=off")
    assert (
        "warning: optimizer.lr is given 2 times (optimizer.lr=0.1,0.2, optimizer.lr=0.3); the last one counts"
        in done.stderr
    )
    assert statuses(manifest_of(project)[0]) == ["FINISHED"]


def test_a_directory_of_a_job_that_is_not_flat_is_refused(project):
    place = "hydra.sweep.subdir=${hydra.job.override_dirname}"
    done = project.train(*QUICK, "+note=../../../x,plain", place, "tracking=off", check=False)
    assert done.returncode == 1
    assert statuses(manifest_of(project)[0]) == ["FAILED", "FINISHED"]
    assert "hydra.sweep.subdir: expected one directory below the sweep's" in done.stderr


def test_the_policy_stop_runs_no_job_after_a_failure_and_resume_runs_them(project):
    done = project.train(
        *QUICK, "optimizer.lr=fast,0.1,0.2", "tracking=off", "sweep.on_failure=stop", check=False
    )
    assert done.returncode == 1
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FAILED"]
    project.train("-m", "sweep.resume=last", check=False)
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FAILED", "FINISHED", "FINISHED"]


def test_skip_done_skips_what_a_finished_run_has_done(project):
    quick = QUICK[1:]
    project.train(*quick, "optimizer.lr=0.1", "tracking=off")
    (first,) = project.runs()
    done = project.train("-m", *quick, "optimizer.lr=0.1,0.2", "tracking=off", "sweep.skip_done=true")
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["SKIPPED", "FINISHED"]
    assert manifest["jobs"]["0"]["directory"] == str(first)
    assert manifest["jobs"]["0"]["value"] == pytest.approx(manifest["jobs"]["0"]["value"])
    assert len(project.runs()) == 2
    assert "SKIPPED" in done.stdout


def test_a_sweep_that_cannot_be_composed_leaves_nothing(project):
    done = project.train(*QUICK, "optimizer.lrr=0.1,0.2", check=False)
    assert done.returncode == 1
    assert "lrr" in done.stderr
    assert not list(project.root.glob("outputs/*"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep.on_failure=explode", r"sweep.on_failure: expected go_on or stop"),
        ("sweep.resume=nothing", "expected one sweep"),
    ],
)
def test_a_setting_of_the_sweep_that_cannot_work_is_one_message(project, override, message):
    done = project.train(*QUICK, "optimizer.lr=0.1,0.2", override, check=False)
    assert done.returncode != 0
    assert message in done.stderr or "expected no other overrides" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(project.root.glob("outputs/*"))


@pytest.mark.slow
def test_a_killed_sweep_says_so_and_resume_runs_what_is_missing(project):
    process = project.start(
        project.root / "train.py",
        *QUICK[:2],
        "data.rows=40000",
        *QUICK[3:],
        "optimizer.lr=0.1,0.2,0.3",
        "trainer.epochs=4",
        cold=True,
    )
    deadline = time.monotonic() + 90
    while True:
        assert time.monotonic() < deadline
        with contextlib.suppress(ValueError, AddressError):
            manifest, directory = manifest_of(project)
            if statuses(manifest) == ["FINISHED", "RUNNING"] and day.is_run(directory / "1"):
                break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    manifest, directory = manifest_of(project)
    assert sweep.status_of(manifest) == "KILLED"
    assert sweep.counts(manifest)["KILLED"] == 1
    first = (directory / "0" / "run.json").read_bytes()
    parent = next(run for run in settled(project, 3).values() if run[2].get("daypoint.kind") == "sweep")
    assert parent[1] == "KILLED"
    project.train("-m", f"sweep.resume={directory.parent.name}/{directory.name}")
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FINISHED"] * 3
    assert (directory / "0" / "run.json").read_bytes() == first
    parent = next(run for run in settled(project, 5).values() if run[2].get("daypoint.kind") == "sweep")
    assert parent[1] == "FINISHED"


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_with_a_word_and_its_summary_not_a_traceback(project):
    process = project.start("train.py", "-m", "model=linear,mlp", "trainer.epochs=500", "tracking=off")
    until(lambda: project.runs())
    until(lambda: (project.runs()[0] / "checkpoints").exists())
    os.kill(process.pid, signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in output
    assert "interrupted" in output
    assert "run what failed or is missing again:" in output
    assert statuses(manifest_of(project)[0]) == ["KILLED"]


@pytest.mark.slow
def test_jobs_side_by_side_share_one_parent_and_failures_are_spared(project):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    lr = "optimizer.lr=" + ",".join(f"0.0{n}" for n in range(1, 8)) + ",fast"
    done = project.train(
        *QUICK, "experiment=parallel", "hydra.launcher.n_jobs=8", lr, check=False, timeout=400
    )
    assert done.returncode == 1
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FINISHED"] * 7 + ["FAILED"]
    runs = settled(project, 8)
    ((parent_id, parent),) = [item for item in runs.items() if item[1][2].get("daypoint.kind") == "sweep"]
    assert parent[1] == "FAILED"
    assert (parent[2]["jobs.finished"], parent[2]["jobs.failed"]) == ("7", "1")
    assert [r[2]["mlflow.parentRunId"] for u, r in runs.items() if u != parent_id] == [parent_id] * 7


@pytest.mark.slow
def test_optuna_gets_the_objective_of_every_job_also_of_a_failed_one(project):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    (project.root / "my_losses.py").write_text(
        "calls = []\n\ndef make():\n    calls.append(1)\n    if len(calls) == 2: raise ValueError('not this time')\n"
        "    return lambda x, y: ((x - y) ** 2).mean()\n"
    )
    (project.root / "conf/loss/mine.yaml").write_text("_target_: my_losses.make\n")
    more = ("hydra.sweeper.n_trials=4", "hydra.sweeper.direction=minimize", "loss=mine", "tracking=off")
    done = project.train(
        *QUICK[:4], "experiment=optuna", *more, check=False, PYTHONPATH=project.root, timeout=200
    )
    manifest, _ = manifest_of(project)
    assert statuses(manifest) == ["FINISHED", "FAILED", "FINISHED", "FINISHED"]
    assert done.returncode == 1
    assert f"Best value: {sweep.best(manifest)[1]['value']}" in done.stdout + done.stderr
    assert all(len(sweep.varying(j["overrides"], manifest)) == 2 for _, j in sweep.jobs_of(manifest))


def test_jobs_that_differ_in_a_secret_only_are_all_run(project):
    project.train(*QUICK, "+db.password=alpha,beta", "tracking=off")
    manifest, directory = manifest_of(project)
    assert statuses(manifest) == ["FINISHED", "FINISHED"]
    assert len(project.runs()) == 2
    for path in directory.rglob("*"):
        assert not path.is_file() or b"alpha" not in path.read_bytes()


def test_a_directory_that_holds_a_sweep_is_not_used_for_another(project):
    project.train(*QUICK, "optimizer.lr=0.1,0.2", "tracking=off", "hydra.sweep.dir=mine")
    before = (project.root / "mine" / "sweep.json").read_bytes()
    done = project.train(*QUICK, "optimizer.lr=0.3", "tracking=off", "hydra.sweep.dir=mine", check=False)
    assert done.returncode == 1
    assert "mine: this directory holds a sweep already" in done.stderr
    assert "Traceback" not in done.stderr
    assert (project.root / "mine" / "sweep.json").read_bytes() == before


def test_an_outputs_directory_that_cannot_be_made_is_one_message(project):
    done = project.train(*QUICK, "optimizer.lr=0.1,0.2", "tracking.outputs=/proc/nope", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- the manifest by itself


def made(tmp_path, jobs, space):
    directory = tmp_path / "20260328" / "sweep-150233-654321"
    directory.mkdir(parents=True)
    sweep.create(directory, moment=day.now(), overrides=[], space=space)
    for number, job in enumerate(jobs):
        sweep.change_job(
            directory, number, **{"status": "FINISHED", "mode": None, "directory": str(number), **job}
        )
    return sweep.read(directory), directory


def job(*overrides, **facts):
    return {"overrides": list(overrides), **facts}


def test_the_best_job_is_by_mode_never_nan_never_failed_and_the_later_of_two(tmp_path):
    values = [0.5, float("nan"), 0.9, 0.9, None, 0.99]
    jobs = [job(f"lr={n}", value=value) for n, value in enumerate(values)]
    jobs[5]["status"] = "FAILED"
    manifest, _ = made(tmp_path, jobs, {"lr": ["0", "1"]})
    assert sweep.best(manifest)[0] == 3
    for entry in manifest["jobs"].values():
        entry["mode"] = "min"
    assert sweep.best(manifest)[0] == 0


def test_values_of_different_metrics_are_not_compared(tmp_path):
    jobs = [
        job("data=linear", value=0.1, metric="val/loss"),
        job("data=digits", value=0.9, metric="val/accuracy"),
    ]
    assert sweep.best(made(tmp_path, jobs, {"data": ["linear", "digits"]})[0]) is None


def test_a_sweep_that_is_being_run_cannot_be_resumed(tmp_path):
    _, directory = made(tmp_path, [job("lr=1", status="RUNNING", **sweep.this_process())], {})
    again = {"moment": day.now(), "overrides": [], "space": {}, "resumes": True}
    with pytest.raises(ConfigError, match=rf"being run by process {os.getpid()} now"):
        sweep.create(directory, **again)
    sweep.change(
        directory, lambda manifest: manifest.update(pid=2**22 + 1)
    )  # its process is gone, not that of the job
    with pytest.raises(ConfigError, match=rf"being run by process {os.getpid()} now"):
        sweep.create(directory, **again)
    sweep.change_job(directory, 0, pid=2**22 + 1)
    sweep.create(directory, **again)


def test_a_process_of_the_same_number_is_another_one(tmp_path):
    manifest, _ = made(tmp_path, [], {})
    assert sweep.status_of(manifest) == "RUNNING"
    assert sweep.status_of({**manifest, "began": "1"}) == "KILLED"


@pytest.mark.parametrize(
    "damage",
    [{"uid": None}, {"jobs": []}, {"jobs": {"a": {}}}, {"jobs": {"0": {"status": "FINISHED"}}}, {"space": 3}],
)
def test_a_damaged_manifest_is_named(tmp_path, damage):
    manifest, directory = made(tmp_path, [], {})
    files.write_atomic(day.sweep_file(directory), files.dumps({**manifest, **damage}))
    with pytest.raises(RunError, match=r"sweep\.json: expected the manifest of a sweep, found no proper"):
        sweep.read(directory)


def test_the_parent_shows_the_best_so_far_unless_metrics_differ():
    ended = [
        {
            "status": status,
            "value": value,
            "metric": metric,
            "mode": "min",
            "ended": f"2026-03-28T10:00:0{n}+00:00",
        }
        for n, (status, value, metric) in enumerate(
            [
                ("FINISHED", 3.0, "loss"),
                ("FAILED", None, "loss"),
                ("FINISHED", float("nan"), "loss"),
                ("FINISHED", 2.0, "loss"),
            ]
        )
    ]
    rows = [{name: value for name, value, _, _ in row} for row in parent._points(ended)]
    assert [row["best/loss"] for row in rows] == [3.0, 3.0, 3.0, 2.0]
    assert [(row["jobs/finished"], row["jobs/failed"]) for row in rows] == [(1, 0), (1, 1), (2, 1), (3, 1)]
    ended[0]["metric"] = "accuracy"
    assert all(len(row) == 2 for row in parent._points(ended))


def test_seeds_are_shown_as_one_row_of_mean_and_deviation(tmp_path):
    jobs = [job(f"lr={lr}", f"trainer.seed={s}", value=lr + s) for lr in (1, 5) for s in (0, 1, 2)]
    manifest, _ = made(tmp_path, jobs, {"lr": ["1", "5"], "trainer.seed": ["0", "1", "2"]})
    assert sweep.over_seeds(manifest) == [(["lr=1"], 3, 2.0, 1.0), (["lr=5"], 3, 6.0, 1.0)]


def test_without_a_sweep_over_seeds_there_is_no_such_row(tmp_path):
    manifest, _ = made(tmp_path, [job("lr=1", value=1.0)], {"lr": ["1", "2"]})
    assert sweep.over_seeds(manifest) == []


def test_a_sweep_is_found_by_day_and_beginning_or_path_and_else_the_candidates_are_listed(tmp_path):
    _, directory = made(tmp_path, [], {})
    for address in ("20260328/sweep-1502", "2026-03-28/sweep-150233-654321", "last", str(directory)):
        assert sweep.find(address, tmp_path) == directory
    with pytest.raises(AddressError, match=r"there are 20260328/sweep-150233-654321"):
        sweep.find("20260329/sweep-1", tmp_path)


def test_a_resumed_sweep_has_the_overrides_that_it_had(tmp_path):
    _, directory = made(tmp_path, [], {})
    sweep.change(directory, lambda manifest: manifest.update(overrides=["lr=1,2", "data=linear"]))
    expanded = expand_resume(["-m", "sweep.resume=last"], tmp_path)
    assert expanded == ["-m", "lr=1,2", "data=linear", f"sweep.resume='{directory}'"]
    assert expand_resume(expanded, tmp_path) == expanded  # as a process of a DataLoader worker has it
    sweep.change(directory, lambda manifest: manifest.update(hydra_overrides=["hydra.launcher.n_jobs=2"]))
    assert "hydra.launcher.n_jobs=2" in expand_resume(["-m", "sweep.resume=last"], tmp_path)
    elsewhere = expand_resume(
        ["-m", "sweep.resume=last", f"tracking.outputs={tmp_path}"], tmp_path / "nowhere"
    )
    assert elsewhere[-1] == expanded[-1]
    with pytest.raises(ConfigError, match=r"expected no other overrides, found lr=3"):
        expand_resume(["-m", "sweep.resume=last", "lr=3"], tmp_path)
    sweep.change(directory, lambda manifest: manifest.update(overrides=["+api_key=***"]))
    with pytest.raises(ConfigError, match=r"\+api_key=\*\*\*: a secret"):
        expand_resume(["-m", "sweep.resume=last"], tmp_path)


@pytest.mark.parametrize(
    "arguments", [["lr=1"], ["-m", "lr=1,2"], ["sweep.resume=last"], ["-m", "sweep.resume=null"]]
)
def test_any_other_command_line_is_left_alone(tmp_path, arguments):
    assert expand_resume(arguments, tmp_path) == arguments


def test_a_group_that_is_replaced_is_not_given_twice(capsys):
    flag_repeated_keys(["~scheduler", "+scheduler={_target_:my.Schedule}"])
    assert capsys.readouterr().err == ""
