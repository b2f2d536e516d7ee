"""The train log, `train_log_DAY.json`: per epoch count, mean, variance, min and max of every metric, and where the batches are.

It is computed from the journal and can be made anew from it. This module opens no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from daypoint.base.day import RunFiles
from daypoint.base.files import decode_metrics, encode_metrics

TRAIN_LOG_FORMAT = "daypoint/train-log/1"


def train_log(files: RunFiles, epochs: Iterable[Mapping[str, Any]], steps: int) -> dict[str, Any]:
    """The content of `train_log_DAY.json`. Statistics that have no finite value to speak of are null."""
    return {
        "format": TRAIN_LOG_FORMAT,
        "day": files.day,
        "steps": steps,
        "batches": files.journal.name,
        "variance": "population (divided by count)",
        "epochs": [
            {
                **entry,
                "stats": {name: encode_metrics(of) for name, of in entry["stats"].items()},
                "metrics": encode_metrics(entry["metrics"]),
            }
            for entry in epochs
        ],
    }


def read_epochs(log: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The epochs of a train log that was read from disk, values restored."""
    return [
        {
            **entry,
            "stats": {name: decode_metrics(of) for name, of in entry["stats"].items()},
            "metrics": decode_metrics(entry["metrics"]),
        }
        for entry in log["epochs"]
    ]
