"""What the files of a run say of one another: a healthy run of any kind agrees, an altered file is named."""

import math
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch
import warm

import daypoint
from daypoint.again.verify import verify_run
from daypoint.base import day, files
from daypoint.record import catalog


def newest(outputs):
    return catalog.read(day.run_directories(outputs)[-1], outputs)


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {"lr": 0.1, "text": r"a \${b} \\\${c}", "tracking": {"enabled": False, "outputs": "outputs"}}


# ---------------------------------------------------------------- healthy runs


def of_two_epochs(run, **_):
    for _ in run.epochs(2):
        for _ in range(3):
            run.log(loss=0.5, lr=0.1)
        run.log_epoch({"val": 1.0})


def of_batches_alone(run):
    for i in range(5):
        run.log(loss=float(i))


def of_nothing(_run):
    pass


def of_epoch_metrics_alone(run):
    for _ in run.epochs(3):
        run.log_epoch({"val": 1.0})


def with_metrics_between_epochs(run):
    for epoch in range(3):
        with run.epoch(epoch):
            run.log(loss=0.5)
        run.log_epoch({"val": float(epoch)})


def with_batches_between_epochs(run):
    for epoch in range(2):
        run.log(warmup=1.0)
        with run.epoch(epoch):
            run.log(loss=0.5)
    run.log(loss=0.5)


def with_steps_of_its_own(run):
    for _ in run.epochs(2):
        for i in range(4):
            run.log({"loss": 0.5}, step=100 * i)


def that_is_left(run):
    for epoch in run.epochs(5):
        run.log(loss=0.5)
        if epoch == 1:
            break


def of_odd_numbers(run):
    for _ in run.epochs(2):
        for value in (math.nan, math.inf, 2**70, True, -0.0, 1e308, -1e308):
            run.log(loss=value)
        run.log_epoch({"val": math.nan, "n": 2**60})


def of_threads(run):
    with run.epoch(0):
        threads = [threading.Thread(target=lambda: [run.log(loss=0.5) for _ in range(600)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(20):
            run.log_epoch({"val": float(i)})
        for thread in threads:
            thread.join()


def of_tensors(run):
    for _ in run.epochs(2):
        for i in range(70):
            run.log(loss=torch.tensor(i / 7), n=torch.tensor(i))


KINDS = [
    of_two_epochs,
    of_batches_alone,
    of_nothing,
    of_epoch_metrics_alone,
    with_metrics_between_epochs,
    with_batches_between_epochs,
    with_steps_of_its_own,
    that_is_left,
    of_odd_numbers,
    of_threads,
    of_tensors,
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("defer", ["", "1"])
@pytest.mark.parametrize("train", KINDS, ids=lambda train: train.__name__)
def test_a_healthy_run_agrees(train, defer, cfg, tmp_path, monkeypatch):
    monkeypatch.setenv("DAYPOINT_DEFER", defer)
    with daypoint.open_run(cfg, quiet=True) as run:
        train(run)
    assert verify_run(newest(tmp_path / "outputs")) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_run_that_an_exception_ends_agrees(error, cfg, tmp_path):
    with pytest.raises(error), daypoint.open_run(cfg, quiet=True) as run:
        for epoch in run.epochs(3):
            run.log(loss=0.5)
            if epoch == 1:
                raise error
    assert verify_run(newest(tmp_path / "outputs")) == []


def test_a_live_run_agrees_at_any_moment(cfg, tmp_path):
    with daypoint.open_run(cfg, quiet=True) as run:
        for _ in run.epochs(2):
            for _ in range(3):
                run.log(loss=0.5)
                assert verify_run(newest(tmp_path / "outputs")) == []
            run.log_epoch({"val": 1.0})
            assert verify_run(newest(tmp_path / "outputs")) == []


RESUMABLE = """
import os, sys, torch, daypoint
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
resume, dies_at, how = sys.argv[1] or None, int(sys.argv[2]), sys.argv[3]
cfg = {"n": int(sys.argv[4]), "tracking": {"enabled": False, "outputs": "outputs"}}
with daypoint.open_run(cfg, quiet=True, resume=resume) as run:
    run.restore(model=model)
    for epoch in run.epochs(4, batches=5):
        for i in range(run.batch, 5):
            run.log(loss=float(i), n=1)
            if run.step % 3 == 0:
                run.save(model=model, wait=True)
            if run.step == dies_at:
                {"kill": lambda: os.kill(os.getpid(), 9), "term": lambda: os.kill(os.getpid(), 15), "": sys.exit}[how]()
        run.log_epoch(val=float(epoch))
"""


def attempt(tmp_path, *arguments):
    return subprocess.run([warm.python(), "-c", RESUMABLE, *map(str, arguments)], cwd=tmp_path).returncode


def test_a_run_that_was_killed_and_resumed_agrees_after_each_attempt(tmp_path):
    outputs = tmp_path / "outputs"
    (tmp_path / "pyproject.toml").touch()
    ends = [(7, "kill"), (6, "kill"), (11, "term"), (10**6, "kill"), (10**6, "")]
    for number, (step, how) in enumerate(ends):
        attempt(tmp_path, "last" if number else "", step, how, number)
        run = newest(outputs)
        assert verify_run(run) == [], (number, how)
        assert run.record["attempts"][-1]["number"] == number + 1
    assert newest(outputs).status == "FINISHED"


@pytest.mark.parametrize(
    "line",
    ["epoch", "epoch_metrics between", "epoch_metrics within"],
    ids=lambda line: line.replace(" ", "_"),
)
def test_a_signal_right_after_a_line_was_written_is_no_disagreement(line, cfg, tmp_path):
    """The journal has the line, and the memory of the trainer had not: an interrupt can come between the two."""
    kind, where = (*line.split(), "")[:2]

    with pytest.raises(KeyboardInterrupt), daypoint.open_run(cfg, quiet=True) as run:
        written = run._journal.append_encoded

        def append(event):
            written(event)
            between = "between" if event.get("epoch") is None else "within"
            if run.step == 2 and event["event"] == kind and where in ("", between):
                run._journal.append_encoded = written
                raise KeyboardInterrupt

        run._journal.append_encoded = append
        for epoch in range(3):
            with run.epoch(epoch):
                run.log(loss=1)
                run.log_epoch(inner=float(epoch))
            run.log_epoch(outer=float(epoch))
    assert verify_run(newest(tmp_path / "outputs")) == []


@pytest.mark.slow
def test_a_run_that_was_killed_at_any_moment_agrees(cfg, tmp_path):
    script = (
        "import daypoint, itertools\n"
        "with daypoint.open_run({'tracking': {'enabled': False, 'outputs': 'outputs'}}, quiet=True) as run:\n"
        "    print('open', flush=True)\n"
        "    for epoch in itertools.count():\n"
        "        with run.epoch(epoch):\n"
        "            run.log(loss=0.5)\n"
        "        run.log_epoch(val=1.0)\n"
    )
    for i in range(20):
        process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE)
        process.stdout.readline()
        threading.Event().wait(0.003 * i)
        process.send_signal(signal.SIGKILL if i % 2 else signal.SIGINT)
        process.stdout.close()
        process.wait()
        assert verify_run(newest(tmp_path / "outputs")) == []


# ---------------------------------------------------------------- altered runs


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run of three attempts and four epochs."""
    root = tmp_path_factory.mktemp("agreement")
    (root / "pyproject.toml").touch()
    for number, (step, how) in enumerate([(7, "kill"), (11, "term"), (10**6, "")]):
        attempt(root, "last" if number else "", step, how, number)
    return root / "outputs"


@pytest.fixture
def run(original, tmp_path):
    outputs = tmp_path / "outputs"
    shutil.copytree(original, outputs)
    found = newest(outputs)
    assert verify_run(found) == []
    return found


def problems_of(run):
    return verify_run(catalog.read(run.directory, run.directory.parent.parent))


def test_any_missing_line_of_the_journal_is_noticed(run):
    lines = run.files.journal.read_bytes().splitlines(keepends=True)
    for i in range(len(lines)):
        run.files.journal.write_bytes(b"".join(lines[:i] + lines[i + 1 :]))
        problems = problems_of(run)
        assert problems, lines[i]
        assert all(str(run.files.journal) in problem for problem in problems), problems


def test_a_missing_line_is_placed_between_two_that_are_right(run):
    lines = run.files.journal.read_bytes().splitlines(keepends=True)
    run.files.journal.write_bytes(b"".join(lines[:2] + lines[3:]))
    (problem,) = problems_of(run)
    assert f"bytes 0 to {sum(map(len, lines[:2] + lines[3:4]))}: {len(lines[2])} bytes are missing" in problem


def test_lines_that_were_put_in_are_noticed(run):
    lines = run.files.journal.read_bytes().splitlines(keepends=True)
    run.files.journal.write_bytes(b"".join([*lines[:2], lines[1], *lines[2:]]))
    (problem,) = problems_of(run)
    assert f"{len(lines[1])} bytes were put in" in problem


def test_a_journal_of_another_run_is_noticed(run, cfg, tmp_path):
    with daypoint.open_run(cfg, quiet=True):
        pass
    shutil.copy(newest(tmp_path / "outputs").files.journal, run.files.journal)
    assert any("run.json of run" in problem for problem in problems_of(run))


def edit_record(run, change):
    record = files.loads(run.files.run.read_bytes())
    change(record)
    files.write_atomic(run.files.run, files.dumps(record))


def test_an_edited_config_in_run_json_is_noticed(run):
    edit_record(run, lambda record: record["config"].update(n=7))
    first, second = problems_of(run)
    assert first.startswith(f"{run.files.run}: the config is not the one whose hash is beside it")
    assert second.startswith(str(run.files.config_of(3)))


def test_an_edited_setting_that_no_hash_covers_is_noticed_beside_the_yaml(run):
    edit_record(run, lambda record: record["config"]["tracking"].update(outputs="elsewhere"))
    (problem,) = problems_of(run)
    assert problem.startswith(
        f"{run.files.config_of(3)}: it is not the config that run.json has of attempt 3"
    )


def test_an_edited_hash_in_run_json_is_noticed(run):
    edit_record(run, lambda record: record.update(config_sha256="0" * 64))
    (problem,) = problems_of(run)
    assert "config_sha256 is not that of the last attempt" in problem


def test_an_edited_status_is_noticed(run):
    edit_record(run, lambda record: record["attempts"][1].update(status="FINISHED"))
    (problem,) = problems_of(run)
    assert problem == f"{run.files.run}: attempt 2 is FINISHED, the journal says KILLED"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_edited_config_file_of_any_attempt_is_noticed(run, number):
    path = run.files.config_of(number)
    path.write_text(path.read_text().replace(f"n: {number - 1}", "n: 9"))
    (problem,) = problems_of(run)
    assert problem.startswith(f"{path}: it is not the config that run.json has of attempt {number}")


@pytest.mark.parametrize("content", [b"", b"- a\n", b"a: [", b"\xff", b"n: !!python/object:os.system {}\n"])
def test_a_config_file_that_is_none_is_noticed(run, content):
    path = run.files.config_of(2)
    path.write_bytes(content)
    (problem,) = problems_of(run)
    assert problem.startswith(f"{path}: ")


def test_nothing_in_a_config_file_is_evaluated(run, monkeypatch):
    path = run.files.config_of(2)
    path.write_text(path.read_text().replace("n: 1", "n: ${oc.env:DAYPOINT_N}"))
    monkeypatch.setenv("DAYPOINT_N", "1")
    assert len(problems_of(run)) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_config_file_is_named(run, number):
    path = run.files.config_of(number)
    path.unlink()
    assert problems_of(run) == [
        f"{path}: expected the config of attempt {number}, found No such file or directory"
    ]


def change_of(path, change):
    content = files.loads(path.read_bytes())
    change(content)
    path.write_bytes(files.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log["epochs"].pop(),
        lambda log: log["epochs"].pop(0),
        lambda log: log.update(steps=3),
        lambda log: log["epochs"][1]["stats"]["loss"].update(mean=0.1),
        lambda log: log["epochs"][3]["metrics"].update(val=0.1),
        lambda log: log.clear(),
    ],
    ids=["last epoch", "first epoch", "steps", "mean", "metric", "all"],
)
def test_an_edited_train_log_is_noticed(run, change):
    change_of(run.files.train_log, change)
    (problem,) = problems_of(run)
    assert problem.startswith(f"{run.files.train_log}: ")


def test_a_missing_train_log_is_named(run):
    run.files.train_log.unlink()
    assert problems_of(run) == [f"{run.files.train_log}: missing"]


def test_a_record_that_is_out_of_order_is_one_message(run):
    edit_record(run, lambda record: record["attempts"][0].pop("number"))
    assert any("not as daypoint writes it" in problem for problem in problems_of(run))
