"""What the consumer does with an error of a handler.

Rejected: the message is parked at once. Refused: answered by CommandRefused. ParentUnknown: the message waits.
Whatever `is_unavailable` names is waited for, unless this message alone meets it for a minute. That and everything
else is tried eight times with back-off, then parked.
"""

from datetime import timedelta
from typing import ClassVar


class RetuneError(Exception):
    """Root of all errors that the platform raises on purpose."""


class Rejected(RetuneError):
    """This message can never succeed. It is parked with the reason; nothing is retried."""


class Refused(RetuneError):
    """A command is not carried out. The sender gets CommandRefused on the service's events topic."""

    def __init__(
        self, code: str, message: str, *, param: str | None = None, subject_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.subject_id = subject_id


class TooLarge(Refused):
    """A message is larger than the limit for what is written: 413 over HTTP."""

    def __init__(self, size: str, *, limit: int) -> None:
        super().__init__("too_large", f"{size}, expected at most {limit}")


class StaleWrite(RetuneError):
    """The aggregate was written by someone else since it was read."""


class Unavailable(RetuneError):
    """Something outside did not answer, or with a server error. That says nothing about what was asked for."""

    dependency: ClassVar[str]
    """Its name, for people."""


class StorageUnavailable(Unavailable):
    """S3 did not answer, or answered with a server error."""

    dependency = "the object store"


class CorruptObject(RetuneError):
    """An object's size or sha256 is not what its manifest says."""


class Conflict(RetuneError):
    """A write-once key exists already with other bytes."""


class ParentUnknown(RetuneError):
    """What the message refers to is not known yet; it waits until `unit.release(parent)` or the limit."""

    def __init__(self, parent: str, *, within: timedelta = timedelta(minutes=5)) -> None:
        super().__init__(f"{parent} is not known yet")
        self.parent = parent
        self.within = within
