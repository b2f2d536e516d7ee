"""Where a file of a run is expected there may be a FIFO, a socket, a device or a directory: every reader says so, and none waits."""

import contextlib
import os
import shutil
import signal
import socket
import stat

import pytest
import torch

import daypoint
from daypoint.again.verify import verify_run
from daypoint.base import day, files
from daypoint.base.errors import DaypointError, FileError
from daypoint.checkpoints import checkpoint
from daypoint.cli import app as cli
from daypoint.record import catalog, pins, sweep
from daypoint.run import provenance

SECONDS = 5  # each takes a few milliseconds; a reader that waits would wait for ever


def fifo(path):
    os.mkfifo(path)


def listening(path):
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(".", os.O_RDONLY)
        try:
            os.chdir(path.parent)  # the address of a socket has 108 bytes at most
            server.bind(path.name)
        finally:
            os.fchdir(here)
            os.close(here)


def device(path):
    path.symlink_to("/dev/zero")  # it never ends


def directory(path):
    path.mkdir()


KINDS = {fifo: "a FIFO", listening: "a socket", device: "a device", directory: "a directory"}


@contextlib.contextmanager
def alarm(seconds=SECONDS):
    def expired(*_):
        raise AssertionError(f"a reader waited for {seconds} seconds")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An outputs directory with one run of one checkpoint."""
    outputs = tmp_path_factory.mktemp("no_files") / "outputs"
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    node = {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 2}
    cfg = {"model": node, "tracking": {"enabled": False, "outputs": str(outputs)}}
    with daypoint.open_run(cfg, quiet=True, monitor="loss") as run:
        for _ in run.epochs(1):
            run.log(loss=1.0)
            run.save(model=model, optimizer=optimizer)
    return outputs


@pytest.fixture
def outputs(original, tmp_path):
    outputs = tmp_path / "outputs"
    shutil.copytree(original, outputs)
    return outputs


FILES = {
    "run.json": "run.json",
    "journal": "journal.jsonl",
    "config": "config_*.yaml",
    "train log": "train_log_*.json",
    "card": "checkpoints/step*/model_*.json",
    "weights": "checkpoints/step*/model_*.safetensors",
    "state tensors": "checkpoints/step*/state_*.safetensors",
    "state": "checkpoints/step*/state_*.state.json",
    "last": "checkpoints/last.json",
    "best": "checkpoints/best.json",
}


def replace(pattern, outputs, make):
    (run,) = day.run_directories(outputs)
    (path,) = run.glob(pattern)
    path.unlink()
    make(path)
    return run, path


def finds(work):
    """What a reader says: its result, or our error."""
    with alarm():
        try:
            return work()
        except DaypointError as error:
            return str(error)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("what", FILES)
def test_verify_names_what_is_no_file(outputs, what, make, monkeypatch, capsys):
    run, path = replace(FILES[what], outputs, make)
    monkeypatch.setattr("sys.argv", ["daypoint", "verify", run.parent.name, "--outputs", str(outputs)])
    with alarm(), pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 1
    assert path.name in said.out + said.err
    assert KINDS[make] in said.out + said.err


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize(
    "command", [["ls"], ["show", "last"], ["compare", "last"], ["plot", "last"]], ids=lambda c: c[0]
)
def test_no_command_waits(outputs, what, make, command, monkeypatch, capsys, tmp_path):
    replace(FILES[what], outputs, make)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["daypoint", *command, "--outputs", str(outputs)])
    with alarm(), contextlib.suppress(SystemExit):
        cli.main()


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("what", ["card", "weights", "state tensors", "state"])
def test_a_checkpoint_is_refused(outputs, what, make):
    run, path = replace(FILES[what], outputs, make)
    (step,) = run.glob("checkpoints/step*")
    with alarm(), pytest.raises(DaypointError) as refused:
        daypoint.load(step, outputs=outputs)
    assert path.name in str(refused.value)
    assert KINDS[make] in str(refused.value)
    with alarm(), pytest.raises(DaypointError, match=KINDS[make]):
        checkpoint.restore(step, model=torch.nn.Linear(4, 2))


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_files_beside_the_runs(outputs, make, tmp_path):
    (run,) = day.run_directories(outputs)
    make(run.parent / "promoted.json")
    with alarm(), pytest.raises(FileError, match=KINDS[make]):
        pins.read_pins(outputs, run.parent.name)
    make(tmp_path / "sweep.json")
    with alarm(), pytest.raises(FileError, match=KINDS[make]):
        sweep.read(tmp_path)
    make(tmp_path / "untracked.py")
    with alarm():  # of a link, where it points
        assert provenance._content(os.fsencode(tmp_path / "untracked.py")) in (None, b"/dev/zero")


def test_a_spool_that_is_no_file(outputs):
    (run,) = day.run_directories(outputs)
    stored = catalog.read(run, outputs)
    fifo(stored.files.spool)
    assert "a FIFO" in finds(lambda: verify_run(catalog.read(run, outputs)))


def test_what_grows_while_it_is_read_ends(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"one\ntwo\n")
    opened = files.open_regular

    def growing(*arguments, **options):
        file = opened(*arguments, **options)
        with open(path, "ab") as more:
            more.write(b"three\nfour\n")
        return file

    assert files.read_bytes(path) == b"one\ntwo\n"
    reading = files.lines(path)
    assert next(reading) == b"one\n"
    with open(path, "ab") as more:
        more.write(b"x" * 2**21 + b"\nfive\n")
    assert list(reading) == [b"two\n"]
    monkeypatch.setattr(files, "open_regular", growing)
    monkeypatch.setattr(
        files.os, "fstat", lambda _: os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, 4, 0, 0, 0))
    )
    assert files.read_bytes(path) == b"one\n"


def test_a_long_tail_of_a_promise_is_not_allocated(tmp_path):
    """An array that claims to be larger than its file is refused before there is memory for it."""
    import numpy as np

    from daypoint.models import inputs

    np.save(tmp_path / "rows.npy", np.zeros((2, 3), np.float32))
    content = (tmp_path / "rows.npy").read_bytes()
    (tmp_path / "rows.npy").write_bytes(content.replace(b"(2, 3), }             ", b"(2000000000000, 3), } "))
    with alarm(), pytest.raises(DaypointError, match=r"rows\.npy"):
        inputs.read_example(tmp_path / "rows.npy", np.dtype(np.float32))
