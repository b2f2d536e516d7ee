"""Runs for the commands to read."""

import pytest

import daypoint


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """An outputs directory with three runs of today: finished, failed, finished with a NaN."""
    outputs = tmp_path / "outputs"
    monkeypatch.setenv("DAYPOINT_OUTPUTS", str(outputs))
    monkeypatch.setenv("COLUMNS", "200")
    for name, value in (("first", 1.0), ("second", None), ("third", float("nan"))):
        cfg = {
            "lr": 0.1,
            "tracking": {"enabled": False, "outputs": str(outputs), "name": name, "on_nonfinite": "record"},
        }
        try:
            with daypoint.open_run(cfg, quiet=True, monitor="val/loss") as run:
                for _ in run.epochs(2):
                    run.log(loss=0.5)
                    if value is None:
                        raise ZeroDivisionError("on purpose")
                    run.log_epoch({"val/loss": value})
        except ZeroDivisionError:
            pass
    return outputs
