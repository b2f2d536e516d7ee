"""Fake trainers for the tests of the courier: `python trainers.py ROOT MODE STEPS`.

Each makes a run in ROOT with a courier, prints its directory, and a line for every step that was acknowledged.

    log     logs STEPS steps, says `ready`, and waits to be killed
    fork    as log, but a child that outlives it holds everything open that a fork copies
    use     as log, but a forked child tries to use and to end the courier first
    leave   logs, ends the run, does not wait for MLflow, and exits
    wait    logs, ends the run, waits for MLflow, and exits; the exit code says whether all arrived
"""

import os
import sys
import time
from pathlib import Path

from written_runs import WrittenRun

from daypoint.tracking.courier import Courier


def say(text):
    print(text, flush=True)


def main(root, mode, steps):
    sys.executable = os.environ.get("COURIERS_PYTHON", sys.executable)
    run = WrittenRun(root, uri=os.environ.get("STORE"))
    courier = Courier.shared()
    courier.add(run.directory)
    say(run.directory)
    if mode == "fork" and os.fork() == 0:
        time.sleep(120)
        os._exit(0)
    if mode == "use" and os.fork() == 0:
        courier.add(run.directory)
        assert not courier.close_run(run.directory, 5.0).done
        assert courier.poll() == []
        courier.shutdown()
        assert Courier.shared() is not courier
        sys.exit(0)
    for step in range(steps):
        run.log(loss=step / 7, lr=0.1)
        say(step)
        time.sleep(0.001)
    if mode in ("leave", "wait"):
        run.end()
        outcome = courier.close_run(run.directory, 100.0 if mode == "wait" else 0.0)
        say(outcome)
        return 0 if outcome.done or mode == "leave" else 1
    if mode == "use":
        os.wait()
    say("ready")
    time.sleep(120)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
