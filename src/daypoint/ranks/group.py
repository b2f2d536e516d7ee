"""Tell which process of a distributed job this is, and give every process a value that rank 0 has decided.

Rank 0 records; the others check their values and write nothing. The rank is read from the environment that
`torchrun` sets, so it is known before any process group exists. What rank 0 has decided (the run directory)
reaches the others through the store that `torchrun` serves to its workers. This module knows neither runs nor devices.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta

from daypoint.base.errors import RunError

WAIT_SECONDS = 120


def rank() -> int:
    """The global rank; 0 outside a distributed job (a RANK without a WORLD_SIZE above 1 means something else)."""
    return _number("RANK", 0) if is_distributed() else 0


def is_main() -> bool:
    """Whether this process is the one that records."""
    return rank() == 0


def count() -> int:
    """How many processes this job has."""
    return _number("WORLD_SIZE", 1) if is_distributed() else 1


def is_distributed() -> bool:
    """Whether there are other processes in this job."""
    return _number("WORLD_SIZE", 1) > 1


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise RunError(f"${name}: expected a whole number, found {text!r}; unset it") from None


_met: Counter[str] = Counter()
"""How often this process has agreed on each name: every rank asks in the same order, so the count tells them apart."""


def agree(name: str, value: str) -> str:
    """Rank 0's value of something, on every rank. Outside a distributed job, the value itself.

    Args:
        name: of the value. A second call with the same name agrees on a new value (a second run of the same job).
        value: rank 0's value; ignored on the others.

    Raises:
        RunError: this is another rank than 0 and there is no store to meet in.
    """
    if not is_distributed():
        return value
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return _meet(name, value)
    if is_main():
        return value  # started by hand, without a store: rank 0 can do without the others
    raise RunError(
        f"rank {rank()}: expected torchrun's store to learn rank 0's {name} from, found none; start the job with torchrun"
    )


def _meet(name: str, value: str) -> str:
    from torch.distributed import TCPStore

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=WAIT_SECONDS))
    key = f"daypoint/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}/{_met[name]}"
    _met[name] += 1
    if is_main():
        store.set(key, value)
        return value
    return store.get(key).decode()
