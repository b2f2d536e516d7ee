"""The runs for which a query holds, out of many; where not all can be shown, the newest.

A name must mean the same in every run that is looked at; a name that no run has is refused, with the nearest ones. Runs are read
one after the other and none is kept, so memory does not grow with their number. This module does not know how a run is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from daypoint.base import day
from daypoint.base.errors import AddressError, ConfigError, DaypointError
from daypoint.reading.facts import FACTS, NUMBERS, PREFIXED, RunFacts, ambiguous
from daypoint.reading.query import (
    MISSING,
    Compare,
    Expression,
    Junction,
    Literal,
    Name,
    Not,
    matches,
    names,
    parse,
)
from daypoint.record import catalog

T = TypeVar("T")


class Selection:
    """Reads runs, and takes those for which a query holds.

    Args:
        where: a query, see `daypoint.reading.query`; without it, every run.
        asked: names besides those of the query, whose values will be asked for.

    Attributes:
        complaints: runs that could not be read, in words.

    Raises:
        ConfigError: the query is none.
        AddressError: a day in it is none.
    """

    def __init__(self, outputs: Path, where: str | None = None, asked: Iterable[Name] = ()) -> None:
        self.complaints: list[str] = []
        self._outputs = outputs
        self._where = _bind(parse(where)) if where else None
        self._asked = [*(names(self._where) if self._where else ()), *asked]
        self._meanings: dict[Name, Name] = {}
        self._there: dict[str, None] = dict.fromkeys(FACTS)
        self._saw_a_run = False

    def directories(self, address: str | None) -> list[Path]:
        """The runs of an address or a range, oldest first; without one, all.

        Raises:
            AddressError: it names nothing.
        """
        return catalog.directories(address, self._outputs) if address else day.run_directories(self._outputs)

    def each(self, directories: Iterable[Path], take: Callable[[RunFacts], T]) -> Iterator[T]:
        """What `take` gives of each run for which the query holds, one after the other; nothing else of a run is kept.

        After the last run, `check` says whether each name was found.
        """
        for run in catalog.each(directories, self._outputs, self.complaints):
            of = RunFacts(run)
            try:
                self._look_for_unknown(of)
                if self._where and not matches(self._where, lambda name, of=of: self.value(name, of)):
                    continue
                taken = take(of)
            except ConfigError:
                raise
            except (DaypointError, OSError) as error:
                self.complaints.append(f"{run.directory}: cannot be read: {error}")
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                # A record that an older daypoint wrote, or somebody edited: the others are there all the same.
                self.complaints.append(
                    f"{run.directory}: the record is damaged ({type(error).__name__}: {error}); left out"
                )
            else:
                yield taken

    def value(self, name: Name, of: RunFacts) -> Any:
        """The value of a name in a run; MISSING if the run has none.

        Raises:
            ConfigError: it could mean several things, here or in another run.
        """
        meant = of.meaning(name)
        if meant is None:
            return MISSING
        if self._meanings.setdefault(name, meant) != meant:
            raise ConfigError(ambiguous(str(name), (self._meanings[name], meant)))
        return of.value(meant)

    def full(self, name: Name) -> Name:
        """What a name meant in the runs so far, in full; itself if no run has had it."""
        return self._meanings.get(name, name)

    def _look_for_unknown(self, of: RunFacts) -> None:
        self._saw_a_run = True
        for name in self.unknown:
            self.value(name, of)
        if self.unknown:
            self._there |= dict.fromkeys((*of.config, *of.metrics))

    @property
    def unknown(self) -> list[Name]:
        """Names that no run has had."""
        return [name for name in self._asked if name not in self._meanings]

    def check(self) -> None:
        """Refuse a name that none of the runs had; to be called after the last one.

        Raises:
            ConfigError: tells the nearest names.
        """
        for name in self.unknown if self._saw_a_run else ():
            import difflib  # only for a message

            spelt = {key.rpartition(".")[2].rpartition("/")[2]: key for key in self._there}
            spelt |= {key: key for key in self._there}
            close = difflib.get_close_matches(name.name, spelt, n=5, cutoff=0.5)
            near = ", ".join(list(dict.fromkeys(spelt[text] for text in close))[:3])
            hint = f"the nearest are {near}" if near else f"there are {', '.join([*self._there][:12])}, …"
            raise ConfigError(
                f"{name}: expected a fact, a hyperparameter or a metric of these runs, found none; {hint}"
            )


def _bind(expression: Expression) -> Expression:
    """A query with its values made fit for facts: days may be written `today`, a status in small letters, and numbers
    stand for their digits where the fact is text.
    """
    if isinstance(expression, Not):
        return Not(_bind(expression.part))
    if isinstance(expression, Junction):
        return Junction(expression.word, tuple(map(_bind, expression.parts)))
    name, literal = expression.name.name, expression.literal
    is_text = name.partition(".")[0] in PREFIXED or name in FACTS
    if expression.name.function or not is_text or name in NUMBERS or expression.op == "~":
        return expression
    if isinstance(literal.value, list):
        value: Any = [_text(name, *item) for item in zip(literal.value, literal.text, strict=True)]
    else:
        value = _text(name, literal.value, literal.text)
    return Compare(expression.name, expression.op, Literal(value, literal.text))


def _text(name: str, value: Any, text: str) -> Any:
    if value is None or isinstance(value, bool | list):
        return value
    if name == "day":
        try:
            return day.parse_day(text)
        except AddressError as error:
            raise AddressError(f"query: day: {error}") from None
    return text.upper() if name == "status" else text


@dataclass(frozen=True)
class Newest:
    """As many runs as can be shown.

    Attributes:
        runs: in the order in which they were named.
        complaints: runs that could not be read, in words.
        remark: what is not shown, in words; None if nothing is left out.
    """

    runs: list[RunFacts]
    complaints: list[str]
    remark: str | None


def newest(addresses: Iterable[str], outputs: Path, most: int, *, where: str | None = None) -> Newest:
    """The runs of days and sweeps, of too many the newest. A run that has an address to itself is always among them.

    Args:
        most: how many at most.
        where: which of the runs, see `daypoint.reading.query`.

    Raises:
        AddressError: an address names nothing; more single runs are named than can be shown.
        ConfigError: the query is none, or no run has a name in it.
    """
    selection = Selection(outputs, where)
    named: dict[Path, bool] = {}
    for address in addresses:
        directories = catalog.directories(address, outputs)
        named |= {path: len(directories) == 1 or named.get(path, False) for path in directories}
    when = dict(selection.each(named, lambda of: (of.run.directory, of.record["started"])))
    selection.check()
    singles = [path for path in when if named[path]]
    if len(singles) > most:
        raise AddressError(f"expected at most {most} runs, found {len(singles)} that are named; name fewer")
    others = sorted((path for path in when if not named[path]), key=lambda path: when[path])
    kept = {*singles, *others[max(len(when) - most, 0) :]}
    runs = list(selection.each((path for path in when if path in kept), lambda of: of))
    left_out = len(runs) < len(when)
    remark = f"the newest {len(runs)} of {len(when)} runs; choose with --where, or name them"
    return Newest(runs, selection.complaints, remark if left_out else None)
