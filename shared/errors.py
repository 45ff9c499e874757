"""Errors of handlers, which decide what the consumer does with a message.

After Rejected the message is parked at once, Refused is answered by CommandRefused, after ParentUnknown the message
waits. An error that `is_unavailable` accepts is waited out, unless this message alone meets it for a minute. After
that, and after any other error, the message is tried eight times with back-off, then parked.
"""

from datetime import timedelta
from typing import ClassVar


class RetuneError(Exception):
    """Root of all errors that the platform raises on purpose."""


class Rejected(RetuneError):
    """This message can never succeed. It is parked with the reason and not retried."""


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
    """A message is larger than the limit for writing; HTTP answers 413."""

    def __init__(self, size: str, *, limit: int) -> None:
        super().__init__("too_large", f"{size}, expected at most {limit}")


class StaleWrite(RetuneError):
    """The aggregate was written by another writer since it was read."""


class Unavailable(RetuneError):
    """A dependency did not answer, or answered with a server error, which leaves the request undecided."""

    dependency: ClassVar[str]
    """Name of the dependency, for people."""


class StorageUnavailable(Unavailable):
    """S3 did not answer, or answered with a server error."""

    dependency = "the object store"


class CorruptObject(RetuneError):
    """An object's size or sha256 differs from that in its manifest."""


class Conflict(RetuneError):
    """A write-once key exists already with other bytes."""


class ParentUnknown(RetuneError):
    """The parent that the message refers to is not known yet; it waits until `unit.release(parent)` or the limit."""

    def __init__(self, parent: str, *, within: timedelta = timedelta(minutes=5)) -> None:
        super().__init__(f"{parent} is not known yet")
        self.parent = parent
        self.within = within
