"""Whether the files of one run agree with one another.

A run says most things twice: run.json has the config and its hash, and each attempt wrote its config down as YAML; the journal has
every event, and the train log is made from it. Here each is compared with the other. What a killed trainer had no time to
write is no disagreement. This module repairs nothing and knows no checkpoint.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from daypoint.base import files
from daypoint.base.day import RunFiles
from daypoint.record import config, identity
from daypoint.record.replay import replay
from daypoint.record.train_log import train_log

Event = Mapping[str, Any]
Log = tuple[list[dict[str, Any]], int]
"""What a train log says: epochs and steps."""

_ESCAPED = re.compile(r"(\\+)\$\{")


def configs(run_files: RunFiles, record: Mapping[str, Any]) -> Iterator[str]:
    """The config of each attempt: run.json, its hash there, and the attempt's own file."""
    attempts, sha256 = record["attempts"], record["config_sha256"]
    if identity.config_sha256(record["config"]) != attempts[-1].get("config_sha256", sha256):
        yield f"{run_files.run}: the config is not the one whose hash is beside it (config_sha256); one of them was changed"
    elif sha256 != attempts[-1].get("config_sha256", sha256):
        yield f"{run_files.run}: config_sha256 is not that of the last attempt; one of them was changed"
    whole = {attempts[0]["number"]: record.get("first_config"), attempts[-1]["number"]: record["config"]}
    for attempt in attempts:
        path = run_files.config_of(attempt["number"])
        try:
            found = yaml.safe_load(files.read_bytes(path))
            given = whole.get(attempt["number"])
            if given is not None:
                same = _hash(found) == _hash(config.escaped(given))
            else:
                same = identity.config_sha256(_unescaped(found)) == attempt.get("config_sha256", sha256)
        except OSError as error:
            yield f"{path}: expected the config of attempt {attempt['number']}, found {error.strerror}"
        except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
            yield f"{path}: expected the config of attempt {attempt['number']}, found {str(error).splitlines()[0]}"
        else:
            if not same:
                yield f"{path}: it is not the config that run.json has of attempt {attempt['number']}; one of them was changed"


def _hash(plain: Any) -> str:
    return identity.config_sha256(plain, ignored=())


def _unescaped(value: Any) -> Any:
    """What `config.escaped` was given. Nothing in the file is evaluated."""
    if isinstance(value, str):
        return _ESCAPED.sub(lambda found: found[1][: len(found[1]) // 2] + "${", value)
    if isinstance(value, dict):
        return {key: _unescaped(item) for key, item in value.items()}
    return [_unescaped(item) for item in value] if isinstance(value, list) else value


def attempts(run_files: RunFiles, record: Mapping[str, Any], events: Sequence[Event]) -> Iterator[str]:
    """The attempts of run.json, and the events with which the journal begins and ends each."""
    started = {event["attempt"]: event for event in events if event["event"] == "start"}
    ended = {event["attempt"]: event for event in events if event["event"] == "end"}
    for attempt in record["attempts"]:
        number, status = attempt["number"], attempt["status"]
        start, end = started.get(number), ended.get(number)
        if start is None:
            yield f"{run_files.journal}: the start of attempt {number} is missing"
        elif start["uid"] != record["uid"]:
            yield f"{run_files.journal}: it is of run {start['uid']}, run.json of run {record['uid']}"
        elif start["step"] != (said := attempt.get("from_step", 0)):
            yield f"{run_files.journal}: attempt {number} starts at step {start['step']}, run.json says {said}"
        if end is None and status in ("FINISHED", "FAILED"):
            yield f"{run_files.journal}: the end of attempt {number} is missing, run.json says that it {status}"
        if end is not None and status not in (end["status"], "RUNNING"):
            yield f"{run_files.run}: attempt {number} is {status}, the journal says {end['status']}"


def log(run_files: RunFiles, events: Sequence[Event]) -> Iterator[str]:
    """The train log of a run that nobody writes any more, and the epochs of the journal."""
    path = run_files.train_log
    possible, is_written = _possible_logs(events)
    try:
        found = _said(files.loads(files.read_bytes(path)))
        ways = itertools.chain([possible], (_possible_logs(heard)[0] for heard in _as_heard(events)))
        if not any(found == _said(train_log(run_files, *each)) for way in ways for each in way):
            yield f"{path}: it is not what the journal says of the epochs; one of them was changed after it was written"
    except FileNotFoundError:
        if is_written:
            yield f"{path}: missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"{path}: expected the train log, found {error}"


def _said(log: Mapping[str, Any]) -> list[Any]:
    return [log["day"], log["steps"], log["epochs"]]


def _as_heard(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The events as a recorder may have seen them that a signal ended: right after the journal had the last one or two, so that its
    memory had not.
    """
    ends = [i for i, e in enumerate(events) if e["event"] == "end" and e["status"] == "KILLED"]
    if events and events[-1]["event"] != "end":
        ends.append(len(events))
    for i in {i for end in ends for i in range(max(end - 4, 0), end)}:
        if events[i]["event"] in ("epoch", "epoch_metrics"):
            yield [*events[:i], *events[i + 1 :]]


def _possible_logs(events: Sequence[Event]) -> tuple[list[Log], bool]:
    """The train logs that may be there, and whether there must be one: the last that was written; after SIGKILL, which may have
    come between an epoch's event and the log with that epoch, also the one before.
    """
    begins = [i for i, event in enumerate(events) if event["event"] == "start"]
    possible: list[Log] = []
    proofs = 0
    for begin, stop in zip(reversed(begins), [len(events), *reversed(begins)], strict=False):
        for epochs, steps, proves in reversed(_logs_of_attempt(events[:begin], events[begin:stop])):
            possible.append((epochs, steps))
            proofs += proves
            if proofs >= 2:
                return possible, True
    return possible, False


def _logs_of_attempt(
    before: Sequence[Event], attempt: Sequence[Event]
) -> deque[tuple[list[dict[str, Any]], int, int]]:
    """The last train logs of one attempt, as `daypoint.run.recorder` writes them: after each epoch's event, and before the end's.
    So an end proves its log (2), an epoch only that of the epoch before (1).
    """
    carried = replay(before, attempt[0]["step"])
    step, epochs, is_first = carried.step, carried.epochs, True
    epoch, metrics = None, {}
    logs: deque[tuple[list[dict[str, Any]], int, int]] = deque(maxlen=4)
    for event in attempt:
        kind, given = event["event"], event.get("epoch")
        if kind in ("batch", "epoch_metrics", "epoch") and epoch is None and given is not None:
            metrics = carried.metrics if is_first and carried.step and carried.epoch == given else {}
            epoch, is_first = given, False
        if kind == "batch":
            step = event["step"] + 1
        elif kind == "epoch_metrics" and given is not None:
            metrics = {**metrics, **event["metrics"]}
        elif kind == "epoch_metrics" and epochs:
            last = epochs[-1]
            epochs = [*epochs[:-1], {**last, "metrics": {**last["metrics"], **event["metrics"]}}]
        elif kind == "epoch":
            entry = {
                key: event[key]
                for key in ("epoch", "complete", "first_step", "steps", "seconds", "stats", "time")
            }
            epochs, epoch = [*epochs, {**entry, "metrics": metrics}], None
            logs.append((epochs, event["first_step"] + event["steps"], 1))
        elif kind == "end":
            logs.append((epochs, event["step"], 2))
    if attempt[-1]["event"] != "end":
        logs.append((epochs, step, 0))
    return logs
