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
    from daypoint.config import fill
    from daypoint.errors import (
        AddressError,
        CheckpointError,
        ConfigError,
        DaypointError,
        JournalError,
        PackageError,
        RunError,
        ScalarError,
        StoreError,
    )
    from daypoint.frames import points, runs
    from daypoint.hydra_app import instantiate, register_configs
    from daypoint.model import load
    from daypoint.opening import open_run
    from daypoint.resume import resumed
    from daypoint.run import Run
    from daypoint.scalar import scalar_loss, to_py
    from daypoint.shapes import print_shapes

_HOMES = {
    "AddressError": "errors",
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "DaypointError": "errors",
    "JournalError": "errors",
    "PackageError": "errors",
    "Run": "run",
    "RunError": "errors",
    "ScalarError": "errors",
    "StoreError": "errors",
    "fill": "config",
    "instantiate": "hydra_app",
    "load": "model",
    "open_run": "opening",
    "points": "frames",
    "print_shapes": "shapes",
    "register_configs": "hydra_app",
    "resumed": "resume",
    "runs": "frames",
    "scalar_loss": "scalar",
    "to_py": "scalar",
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
