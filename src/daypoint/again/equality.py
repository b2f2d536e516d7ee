"""Whether two runs measured the same, value by value, and where they first differ.

Every batch value and every epoch metric of the journals is compared; steps that a resumed run did twice count once. Two
values are the same if they are the same number, and NaN is the same as NaN: there is no tolerance. Of the weights, the
hashes in the cards of checkpoints of the same name are compared. This module runs nothing, and does not know why two runs differ
(`daypoint.run.causes` does).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from daypoint.base import files
from daypoint.base.day import CheckpointFiles
from daypoint.record import journal, shelf
from daypoint.record.catalog import StoredRun
from daypoint.record.replay import valid_events
from daypoint.run import causes

Value = bool | int | float
_KINDS = {"batch": 0, "epoch_metrics": 1}
Place = tuple[int, int, int]
"""Step; 0 for a batch and 1 for what was measured after it; which one, where a step was logged more than once."""


@dataclass(frozen=True)
class Difference:
    """A value that is not the same in both.

    Attributes:
        step, metric: where.
        before, after: the original's value and the other's; None where there is none.
    """

    step: int
    metric: str
    before: Value | None
    after: Value | None

    @property
    def absolute(self) -> float:
        """How far apart; infinite where one of them is not finite or not there."""
        if self.before is None or self.after is None:
            return math.inf
        try:
            distance = float(abs(self.before - self.after))
        except OverflowError:
            return math.inf
        return math.inf if math.isnan(distance) else distance

    @property
    def relative(self) -> float:
        """`absolute` in units of the larger of the two."""
        if math.isinf(self.absolute):
            return math.inf
        return self.absolute / max(abs(self.before), abs(self.after))  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """As plain data; before and after as strict JSON can hold them."""
        values = {"before": self.before, "after": self.after}
        return {"step": self.step, "metric": self.metric, **files.encode_metrics(values)}  # type: ignore[arg-type]


@dataclass
class Equality:
    """What a comparison found.

    Attributes:
        batches: batches that both have.
        metrics: names of what was compared.
        values: how many values were.
        different: how many of them are not the same, by metric.
        first: the differences at the first step that has any.
        largest, largest_relative: the difference that is largest, as such and in proportion.
        only_before, only_after: how many batches only the original and only the other has.
        ignored: how many values were not compared, by metric.
        weights: whether the weights are the same, by the checkpoint's name.
        reasons: what differs between the records.
        damages: places of the journals that cannot be read.
    """

    batches: int = 0
    metrics: list[str] = field(default_factory=list)
    values: int = 0
    different: dict[str, int] = field(default_factory=dict)
    first: list[Difference] = field(default_factory=list)
    largest: Difference | None = None
    largest_relative: Difference | None = None
    only_before: int = 0
    only_after: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    weights: dict[str, bool] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return not (self.different or self.only_before or self.only_after) and all(self.weights.values())

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for `--json`."""

        def measured(difference: Difference | None) -> dict[str, Any] | None:
            if difference is None:
                return None
            size = {"absolute": difference.absolute, "relative": difference.relative}
            return {**difference.to_dict(), **files.encode_metrics(size)}

        return {
            **vars(self),
            "identical": self.identical,
            "first": [difference.to_dict() for difference in self.first],
            "largest": measured(self.largest),
            "largest_relative": measured(self.largest_relative),
        }


def compare(
    before: StoredRun,
    after: StoredRun,
    *,
    config: Mapping[str, Any] | None = None,
    batches: int | None = None,
    ignore: Collection[str] = (),
) -> Equality:
    """Compare a run with another.

    Args:
        before: the original.
        config: the original's config, where it is not the one its record ends with.
        batches: how many batches to compare; all by default.
        ignore: metrics to leave out, such as those that measure time.
    """
    found = Equality()
    mine, theirs = (_recorded(run, batches, found) for run in (before, after))
    for place in dict.fromkeys((*mine, *theirs)):
        values, others = mine.get(place), theirs.get(place)
        if place[1] == 0:  # a missing batch is one line, not one for each of its values
            found.only_before += others is None
            found.only_after += values is None
            if values is None or others is None:
                continue
            found.batches += 1
        _compare_values(found, place, values or {}, others or {}, ignore)
    names = {name for values in (*mine.values(), *theirs.values()) for name in values}
    found.metrics = sorted(names - set(ignore))
    last = max((place[0] for place in mine), default=-1) + 1
    found.weights = _weights(before, after, last if batches is not None else None)
    found.reasons = causes.between(before.record, after.record, config)
    return found


def batch_steps(run: StoredRun) -> list[int]:
    """The step of every batch of a run, those that count, in order."""
    events = valid_events(journal.read(run.files.journal).events)
    return [event["step"] for event in events if event["event"] == "batch"]


def _recorded(run: StoredRun, batches: int | None, found: Equality) -> dict[Place, Mapping[str, Value]]:
    """What a run recorded, up to its so many-th batch and without what it measured after that one."""
    reading = journal.read(run.files.journal)
    found.damages += [f"{run.files.journal}: {damage}" for damage in reading.damages]
    recorded: dict[Place, Mapping[str, Value]] = {}
    count = 0
    for event in valid_events(reading.events):
        kind = _KINDS.get(event["event"])
        if kind is None:
            continue
        place = next(p for n in itertools.count() if (p := (event["step"], kind, n)) not in recorded)
        recorded[place] = event["metrics"]
        count += kind == 0
        if count == batches and kind == 0:
            break
    return recorded


def _compare_values(
    found: Equality,
    place: Place,
    before: Mapping[str, Value],
    after: Mapping[str, Value],
    ignore: Collection[str],
) -> None:
    for name in dict.fromkeys((*before, *after)):
        if name in ignore:
            found.ignored[name] = found.ignored.get(name, 0) + 1
            continue
        a, b = before.get(name), after.get(name)
        found.values += 1
        if a == b or (a != a and b != b):
            continue
        found.different[name] = found.different.get(name, 0) + 1
        difference = Difference(place[0], name, a, b)
        if not found.first or place[0] < found.first[0].step:
            found.first = [difference]
        elif place[0] == found.first[0].step:
            found.first.append(difference)
        if found.largest is None or difference.absolute > found.largest.absolute:
            found.largest = difference
        if found.largest_relative is None or difference.relative > found.largest_relative.relative:
            found.largest_relative = difference


def _weights(before: StoredRun, after: StoredRun, until_step: int | None) -> dict[str, bool]:
    def hashes(run: StoredRun) -> dict[str, str]:
        return {
            path.name: card["files"][CheckpointFiles(path, card["day"]).weights.name]["sha256"]
            for path, card in shelf.history(run.files)
            if until_step is None or card["step"] <= until_step
        }

    mine, theirs = hashes(before), hashes(after)
    return {name: digest == theirs[name] for name, digest in sorted(mine.items()) if name in theirs}


# ---------------------------------------------------------------- in words


def report(found: Equality) -> list[str]:
    """The comparison in lines of text, the verdict first."""
    batches = _many(found.batches, "batch", "batches")
    what = f"{batches}, {_many(len(found.metrics), 'metric')}, {_many(found.values, 'value')}"
    lines = [f"identical: {what}"] if found.identical else [f"different: {what}"]
    if found.first:
        lines.append(f"first at step {found.first[0].step}:")
        lines += [f"  {d.metric}: was {_text(d.before)}, now {_text(d.after)}" for d in found.first]
    for label, largest in (("absolute", found.largest), ("relative", found.largest_relative)):
        if largest is not None:
            size = getattr(largest, label)
            lines.append(f"largest {label} difference: {size:.3g}, {largest.metric} at step {largest.step}")
    if found.different:
        counts = ", ".join(f"{name} {count:,}" for name, count in found.different.items())
        lines.append(f"values that differ: {counts}")
        if unchanged := [name for name in found.metrics if name not in found.different]:
            lines.append(f"never differ: {', '.join(unchanged)}")
    for count, where in ((found.only_before, "the original"), (found.only_after, "the other run")):
        if count:
            lines.append(f"only in {where}: {_many(count, 'batch', 'batches')}")
    for name, count in found.ignored.items():
        lines.append(f"not compared: {name}, {_many(count, 'value')}")
    lines.append(_weights_line(found.weights))
    lines += [f"damaged: {damage}" for damage in found.damages]
    if found.identical:
        return lines
    if found.reasons:
        lines.append("what differs between the records, any of which may be why:")
        lines += [f"  {reason}" for reason in found.reasons]
    else:
        lines.append(
            "the records are the same (config, data, device, threads, versions, and code as far as git knows it): the training "
            "itself does not repeat, such as random numbers without a seed, or kernels that add in any order"
        )
    same_training = bool(found.weights) and all(found.weights.values())
    if found.different and (same_training or not found.reasons):
        lines.append(f"metrics that measure time never repeat: --ignore {' --ignore '.join(found.different)}")
    return lines


def _weights_line(weights: Mapping[str, bool]) -> str:
    if not weights:
        return "weights: not compared, there is no checkpoint that both have"
    if other := [name for name, same in weights.items() if not same]:
        return f"weights: differ in {', '.join(other)}"
    return f"weights: identical in {', '.join(weights)}"


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def _text(value: Value | None) -> str:
    return "nothing" if value is None else repr(value)
