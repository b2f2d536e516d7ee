"""The exceptions that daypoint raises on purpose. This module imports nothing else of daypoint.

    DaypointError
    ├── ScalarError (TypeError)         a value is not one real number: wrong shape, dtype or kind
    ├── ConfigError (ValueError)        a setting is missing, misspelt, of the wrong type or cannot work
    ├── AddressError (LookupError)      a day or run address names nothing, or more than one thing
    ├── RunError (RuntimeError)         a run is used where it cannot be: closed, claimed, in a worker process
    ├── FileError (OSError)             something that is no regular file stands where a file is expected
    ├── JournalError (OSError)          a record could not be written whole (full disk, quota, I/O error)
    ├── CheckpointError (RuntimeError)  a checkpoint cannot be written, found or trusted
    ├── PackageError (RuntimeError)     a model cannot be made servable, or its package cannot be trusted
    └── StoreError (RuntimeError)       the MLflow store cannot be used as it is

A message says which item, what was expected, what was found and what to do, in that order.
Each class also derives from the builtin that a careful caller would already catch.
"""

import errno
from typing import Any


class DaypointError(Exception):
    """Base of every error that daypoint raises on purpose."""


class ScalarError(DaypointError, TypeError):
    """A value that should have been one real number is not."""


class ConfigError(DaypointError, ValueError):
    """A setting is missing, misspelt, of the wrong type, or cannot work with another."""


class AddressError(DaypointError, LookupError):
    """An address names no run, or more than one."""

    # LookupError is not KeyError: str() of it is the message, without quotes.


class RunError(DaypointError, RuntimeError):
    """A run is used where it cannot be: after its end, in a worker process, in a claimed directory."""


class FileError(DaypointError, OSError):
    """A directory, FIFO, socket or device stands where a file is expected.

    Args:
        found: what it is, as in `a FIFO`; it is the error's `strerror`.
    """

    def __init__(self, found: str, path: object) -> None:
        super().__init__(errno.EINVAL, found, path)

    def __str__(self) -> str:
        return (
            f"{self.filename}: expected a regular file, found {self.strerror}; remove it, or restore the file"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.strerror, self.filename)


class JournalError(DaypointError, OSError):
    """A record could not be written whole; the values of that call are not recorded."""


class CheckpointError(DaypointError, RuntimeError):
    """A checkpoint cannot be written, found or trusted."""


class PackageError(DaypointError, RuntimeError):
    """A model cannot be made servable, or what was made cannot be trusted."""


class StoreError(DaypointError, RuntimeError):
    """The MLflow store cannot be used as it is."""


for _error in (DaypointError, *DaypointError.__subclasses__()):
    _error.__module__ = (
        "daypoint"  # where users import them from, so that a traceback says `daypoint.ScalarError`
    )
