"""Waiting for what another process does."""

import time


def until(condition, seconds=60.0):
    """Wait until a condition holds; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)
    return value
