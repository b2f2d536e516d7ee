"""Check what `open_run` was asked for, and collect what the config, Hydra and the environment say about the new run.

Nothing is written here, and nothing is known yet of the run directory or of an earlier run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from daypoint.base import day, keys
from daypoint.base.errors import ConfigError
from daypoint.hydra import app as hydra_app
from daypoint.record import config
from daypoint.record.config import Tracking
from daypoint.run import resume
from daypoint.tracking import store


class Request:
    """The arguments of `open_run`, and what follows from them.

    Attributes:
        plain: the resolved config.
        references, filled: which values of the config refer to others, or were put in by the program; a resume needs it.
        uri: the MLflow store, or None when tracking is off.
        job: the job that Hydra runs, or None.

    Raises:
        ConfigError: a setting cannot work.
    """

    def __init__(
        self,
        cfg: DictConfig | Mapping[str, Any] | None,
        data: Any,
        monitor: str | None,
        mode: str | None,
        keep: int | None,
    ) -> None:
        self.references = resume.references(cfg)
        self.filled = config.filled(cfg)
        self.plain = config.resolve(cfg)
        self.settings: Tracking = config.section(self.plain, "tracking")
        self.root = day.project_root()
        self.outputs = config.outputs_directory(self.settings, self.root)
        self.uri = store.tracking_uri(self.settings.uri, self.root) if self.settings.enabled else None
        keys.flatten(self.plain)  # two hyperparameters with one name are refused now
        self.data = data
        trainer = _section(self.plain, "trainer")
        self.device = trainer.get("device")
        self.monitor = monitor or trainer.get("monitor")
        self.mode = mode or trainer.get("mode")
        self.keep = keep if keep is not None else trainer.get("keep")
        if self.monitor is not None and not isinstance(self.monitor, str):
            raise ConfigError(f"monitor: expected the name of a metric, found {self.monitor!r}")
        if self.mode not in (None, "min", "max"):
            raise ConfigError(f"mode: expected min, max or None, found {self.mode!r}")
        if self.keep is not None and (type(self.keep) is not int or self.keep < 1):
            raise ConfigError(
                f"keep: expected a number of checkpoints from 1, or None for all, found {self.keep!r}"
            )
        self.job = hydra_app.current_job()

    @property
    def in_sweep(self) -> bool:
        """Whether this is one of the jobs of a sweep."""
        return self.job is not None and self.job.sweep_job is not None

    @property
    def experiment(self) -> str:
        """The MLflow experiment: as configured, else the name of the data, else of the script."""
        configured = _section(self.plain, "data").get("name")
        if name := self.settings.experiment or getattr(self.data, "name", None) or configured:
            return str(name)
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        return Path(script).stem if script else day.project_root().name


def _section(plain: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = plain.get(name)
    return section if isinstance(section, dict) else {}
