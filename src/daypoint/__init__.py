"""daypoint: experiment tracking for PyTorch on Hydra and MLflow.

    import daypoint

    with daypoint.open_run(cfg) as run:
        for epoch in run.epochs(10):
            for x, y in loader:
                loss = daypoint.scalar_loss(criterion(model(x), y))
                ...
                run.log(loss=loss)
            run.save(model=model, optimizer=optimizer)

Every number is a number, every run is filed under its day, every checkpoint carries its identity card.
Importing this module imports neither torch nor mlflow; each name below is imported when it is first used.
"""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daypoint.base.errors import (
        AddressError,
        CheckpointError,
        ConfigError,
        DaypointError,
        FileError,
        JournalError,
        PackageError,
        RunError,
        ScalarError,
        StoreError,
    )
    from daypoint.hydra.app import instantiate, register_configs
    from daypoint.models.load import load
    from daypoint.reading.frames import points, runs
    from daypoint.record.config import fill
    from daypoint.run.opening import open_run
    from daypoint.run.resume import resumed
    from daypoint.run.run import Run
    from daypoint.run.shapes import print_shapes
    from daypoint.scalars.convert import scalar_loss, to_py

_HOMES = {
    "AddressError": "base.errors",
    "CheckpointError": "base.errors",
    "ConfigError": "base.errors",
    "DaypointError": "base.errors",
    "FileError": "base.errors",
    "JournalError": "base.errors",
    "PackageError": "base.errors",
    "Run": "run.run",
    "RunError": "base.errors",
    "ScalarError": "base.errors",
    "StoreError": "base.errors",
    "fill": "record.config",
    "instantiate": "hydra.app",
    "load": "models.load",
    "open_run": "run.opening",
    "points": "reading.frames",
    "print_shapes": "run.shapes",
    "register_configs": "hydra.app",
    "resumed": "run.resume",
    "runs": "reading.frames",
    "scalar_loss": "scalars.convert",
    "to_py": "scalars.convert",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'daypoint' has no attribute {name!r}")
    state = random.getstate()
    value = getattr(import_module(f"daypoint.{_HOMES[name]}"), name)
    # Some packages draw random numbers while they are imported (rich does); a program that has seeded must not notice when.
    random.setstate(state)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
