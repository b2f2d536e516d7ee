"""Selection: the runs for which a query holds, out of many; where not all can be shown, the newest.

A name means the same in every run that is looked at, or it is refused; one that no run has is refused too, with the nearest
ones. Runs are read one after the other and none is kept, so memory does not grow with their number. This module knows nothing
of how a run is shown. One number: 0.12 s for a query about hyperparameters in a thousand runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from daypoint.base import day
from daypoint.base.errors import AddressError, ConfigError, DaypointError
from daypoint.reading.facts import FACTS, NUMBERS, PREFIXED, RunFacts, ambiguous
from daypoint.reading.grammar import parse
from daypoint.reading.query import MISSING, Compare, Expression, Junction, Literal, Name, Not, matches, names
from daypoint.record import catalog

T = TypeVar("T")


class Names:
    """What names mean, over all runs that are looked at: the same thing in each, or it is refused."""

    def __init__(self, asked: Iterable[Name] = ()) -> None:
        self._asked = list(asked)
        self._meanings: dict[Name, Name] = {}
        self._there: dict[str, None] = dict.fromkeys(FACTS)
        self._saw_a_run = False

    def value(self, name: Name, of: RunFacts) -> Any:
        """The value of a name as it was asked for; MISSING if this run has none.

        Raises:
            ConfigError: it could mean several things, here or in another run.
        """
        if name.name in FACTS and not name.function:
            self._meanings[name] = name
            return FACTS[name.name](of)
        meant = of.meaning(name)
        if meant is None:
            return MISSING
        if self._meanings.setdefault(name, meant) != meant:
            raise ConfigError(ambiguous(str(name), (self._meanings[name], meant)))
        return of.value(meant)

    def full(self, name: Name) -> Name:
        """What a name meant, in full; itself if no run has had it."""
        return self._meanings.get(name, name)

    def see(self, of: RunFacts) -> None:
        """Look at what a run has, as long as a name has not been found yet."""
        self._saw_a_run = True
        if unknown := self.unknown:
            for name in unknown:
                self.value(name, of)
            if self.unknown:
                self._there |= dict.fromkeys((*of.config, *of.metrics))

    @property
    def unknown(self) -> list[Name]:
        """Names that no run has had."""
        return [name for name in self._asked if name not in self._meanings]

    def check(self) -> None:
        """After the last run.

        Raises:
            ConfigError: there were runs, and none has had a name; tells the nearest ones.
        """
        for name in self.unknown if self._saw_a_run else ():
            import difflib  # only for a message

            spelt = {key.rpartition(".")[2].rpartition("/")[2]: key for key in self._there} | {
                k: k for k in self._there
            }
            close = difflib.get_close_matches(name.name, spelt, n=5, cutoff=0.5)
            near = list(dict.fromkeys(spelt[text] for text in close))[:3]
            hint = (
                f"the nearest are {', '.join(near)}"
                if near
                else f"there are {', '.join([*self._there][:12])}, …"
            )
            raise ConfigError(
                f"{name}: expected a fact, a hyperparameter or a metric of these runs, found none; {hint}"
            )


def bind(expression: Expression) -> Expression:
    """A query with its values made fit for facts: days may be written `today`, a status in small letters, and numbers
    stand for their digits where the fact is text.

    Raises:
        AddressError: a day is none.
    """
    if isinstance(expression, Not):
        return Not(bind(expression.part))
    if isinstance(expression, Junction):
        return Junction(expression.word, tuple(bind(part) for part in expression.parts))
    name = expression.name.name
    is_text = name.partition(".")[0] in PREFIXED or name in FACTS
    if expression.name.function or not is_text or name in NUMBERS or expression.op == "~":
        return expression
    literal = expression.literal
    if isinstance(literal.value, list):
        texts = literal.text.split("\0")
        value: Any = [_text(name, Literal(v, t)) for v, t in zip(literal.value, texts, strict=False)]
    else:
        value = _text(name, literal)
    return Compare(expression.name, expression.op, Literal(value, literal.text))


def _text(name: str, literal: Literal) -> Any:
    if literal.value is None or isinstance(literal.value, bool | list):
        return literal.value
    if name == "day":
        try:
            return day.parse_day(literal.text)
        except AddressError as error:
            raise AddressError(f"query: day: {error}") from None
    return literal.text.upper() if name == "status" else literal.text


def select(
    directories: Iterable[Path],
    outputs: Path,
    complaints: list[str],
    take: Callable[[RunFacts], T],
    *,
    where: Expression | None = None,
    known: Names | None = None,
) -> Iterator[T]:
    """What `take` gives of each run for which a query holds, one after the other; nothing else of a run is kept.

    Whoever goes through to the end asks `known.check()` then.

    Args:
        complaints: what could not be read is added here, in words.
        where: as `bind` gives it; without it, every run.
        known: learns what the names of the query mean.
    """
    known = known if known is not None else Names(names(where) if where else ())
    for run in catalog.each(directories, outputs, complaints):
        of = RunFacts(run)
        try:
            known.see(of)
            if where is not None and not matches(where, lambda name, of=of: known.value(name, of)):
                continue
            taken = take(of)
        except ConfigError:
            raise
        except (DaypointError, OSError) as error:
            complaints.append(f"{run.directory}: cannot be read: {error}")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            # A record that an older daypoint wrote, or somebody edited: the others are there all the same.
            complaints.append(
                f"{run.directory}: the record is damaged ({type(error).__name__}: {error}); left out"
            )
        else:
            yield taken


@dataclass(frozen=True)
class Newest:
    """As many runs as can be shown.

    Attributes:
        runs: in the order in which they were named.
        found: how many there were.
        complaints: runs that could not be read, in words.
    """

    runs: list[RunFacts]
    found: int
    complaints: list[str]

    @property
    def remark(self) -> str | None:
        """What is not shown, in words; None if nothing is left out."""
        if len(self.runs) == self.found:
            return None
        return f"the newest {len(self.runs)} of {self.found} runs; choose with --where, or name them"


def newest(addresses: Iterable[str], outputs: Path, most: int, *, where: str | None = None) -> Newest:
    """The runs of days and sweeps, of too many the newest. A run that has an address to itself is always among them.

    Args:
        most: how many at most.
        where: which of the runs, see `daypoint.reading.query`.

    Raises:
        AddressError: an address names nothing; more single runs are named than can be shown.
        ConfigError: the query is none, or no run has a name in it.
    """
    named: dict[Path, bool] = {}
    for address in addresses:
        directories = catalog.directories(address, outputs)
        named |= {path: len(directories) == 1 or named.get(path, False) for path in directories}
    condition = bind(parse(where)) if where else None
    known = Names(names(condition) if condition else ())
    complaints: list[str] = []

    def start(of: RunFacts) -> tuple[Path, str]:
        return of.run.directory, of.record["started"]

    when = dict(select(named, outputs, complaints, start, where=condition, known=known))
    known.check()
    singles = [path for path in when if named[path]]
    if len(singles) > most:
        raise AddressError(f"expected at most {most} runs, found {len(singles)} that are named; name fewer")
    others = sorted((path for path in when if not named[path]), key=lambda path: when[path])
    kept = {*singles, *others[max(len(singles) + len(others) - most, 0) :]}
    runs = list(select((path for path in when if path in kept), outputs, complaints, lambda of: of))
    return Newest(runs, len(when), complaints)
