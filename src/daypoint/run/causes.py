"""List, in words, what differs between the records of two runs and can change what a training measures.

It compares what run.json holds of both: config, code, data, device, threads, host, versions. It does not know which of the
differences was the cause, and reads no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from daypoint.run import resume


def between(
    before: Mapping[str, Any], after: Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> list[str]:
    """The differences between two records that can change what a training measures, the likeliest cause first."""
    found: list[str] = []
    for name, (a, b) in resume.changes(config or before["config"], after["config"]).items():
        found.append(f"config: {name} was {a!r}, now {b!r}")
    found += code_differs(code_of(before), code_of(after))
    if len({(git["commit"], git["diff_sha256"]) for git in _codes(before)}) > 1:
        found.append("code: the original was resumed with other code than it began with")
    files = [
        {of["file"]: of["sha256"] for of in (record.get("code") or {}).values()} for record in (before, after)
    ]
    found += [
        f"code: {file} is not the same"
        for file in sorted(files[0].keys() & files[1].keys())
        if files[0][file] != files[1][file]
    ]
    data = [record.get("data") or {} for record in (before, after)]
    found += _differs("data", data, ("name", "rows", "fingerprint"))
    found += _differs("", [before, after], ("device", "ranks", "threads", "host"))
    versions = [record.get("versions") or {} for record in (before, after)]
    found += _differs("versions", versions, tuple({**versions[0], **versions[1]}))
    return found


def code_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the code that a run began with."""
    return _codes(record)[0]


def _codes(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [attempt.get("git") or record["git"] for attempt in record["attempts"]]


def code_differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The differences between two states of the code, from `provenance.inspect`."""
    if before["commit"] is None and after["commit"] is None:
        return []  # nobody can tell
    if before["commit"] is None or after["commit"] is None:
        why = before["reason"] if before["commit"] is None else after["reason"]
        return [f"code: which it was cannot be told ({why})"]
    found = []
    if before["commit"] != after["commit"]:
        found.append(f"code: the commit was {before['commit'][:12]}, now {after['commit'][:12]}")
    if before["diff_sha256"] != after["diff_sha256"]:
        was, now = (
            "none" if git["diff_sha256"] is None else f"those with sha256 {git['diff_sha256'][:12]}"
            for git in (before, after)
        )
        found.append(f"code: uncommitted changes were {was}, now {now}")
    return found


def _differs(what: str, pair: list[Mapping[str, Any]], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        a, b = (one.get(name) for one in pair)
        if a != b:
            label = f"{what}: {name}" if what else name
            yield f"{label} was {a}, now {b}"
