"""The tags of a run in MLflow: which it has, and which are still to be sent.

Some tags are lists of remarks, `subject: text; subject: text`, one for each subject. This module does not know what a tag
means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG_LIMIT = 8000
"""Characters."""


class Tags:
    """The tags of one run.

    Args:
        known: those that MLflow has.
    """

    def __init__(self, known: dict[str, str]) -> None:
        self._known = dict(known)
        self._texts = dict(known)

    def get(self, tag: str, default: str = "") -> str:
        return self._texts.get(tag, default)

    def set(self, tag: str, text: str) -> None:
        self._texts[tag] = fit(text, TAG_LIMIT)

    def remark(self, tag: str, subject: str, text: str) -> None:
        """Add a remark, unless there is one on this subject."""
        remarks = f"; {self._texts[tag]}" if tag in self._texts else ""
        if f"; {subject}: " not in remarks:
            text = text.replace("; ", ", ").replace(": ", " ")
            self.set(tag, f"{remarks}; {subject}: {text}"[2:])

    @property
    def changed(self) -> dict[str, str]:
        """Those that MLflow does not have yet."""
        return {tag: text for tag, text in sorted(self._texts.items()) if self._known.get(tag) != text}

    def send(self, client: MlflowClient, run_id: str) -> None:
        """Send those that MLflow does not have yet."""
        from mlflow.entities import RunTag

        tags = [RunTag(tag, text) for tag, text in self.changed.items()]
        if tags:
            client.log_batch(run_id, tags=tags, synchronous=True)
        self._known = dict(self._texts)


def fit(text: str, limit: int) -> str:
    """The text as every MLflow store takes it: not too long, and without NUL, which PostgreSQL refuses."""
    text = text.replace("\0", "\\x00")
    return text if len(text) <= limit else text[: limit - 1] + "…"
