"""Turns statements, in their order, into anchors: offsets of each partition whose link was signed."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime

from ops.audit.findings import Finding
from schemas.audit import NOTHING_BEFORE, Statement
from shared.audit.chain import Chain, begin
from shared.audit.heads import Heads, agrees, heads_of, moved_on
from shared.audit.signing import BadSignature, PublicKey
from shared.partition import Partition


@dataclass(frozen=True, slots=True)
class Anchor:
    """Up to `next_offset` the records hash to `link`, says statement `number`."""

    number: int
    start_offset: int
    next_offset: int
    link: bytes
    oldest_ms: int | None = None
    """Least and greatest time of the records since the anchor before."""
    newest_ms: int | None = None


@dataclass
class Walk:
    """Takes one statement after another; `anchors` has those that say something new of a partition."""

    key: PublicKey
    first: int
    """Number of the first statement that is looked at; what is before it is taken as it is signed there."""
    heads: Heads | None = None
    """The head of every partition; None behind a statement that is missing, up to the next full one."""
    anchors: dict[Partition, list[Anchor]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    number: int = 0
    """Number of the last statement that was taken."""
    signed_at: datetime | None = None
    _previous_sha256: str | None = None
    _knew_all: bool = False
    """Whether all heads were known at a statement before: what is named for the first time has begun since."""

    def __post_init__(self) -> None:
        self.number = self.first - 1
        if self.first == 1:
            self._previous_sha256, self.heads, self._knew_all = NOTHING_BEFORE, {}, True

    def take(self, number: int, document: bytes) -> None:
        """The object that is named `number`; those that were left out are missing."""
        before, self.number = self.number, number
        if number != before + 1:
            self._find(f"missing are {before + 1}–{number - 1}", before, number)
            self.heads = None
        digest = hashlib.sha256(document).hexdigest()
        try:
            statement = self.key.open(document)
        except BadSignature as error:
            self._find(str(error), before, number)
            self.heads = None
        else:
            self._take(statement, before, number)
        self._previous_sha256 = digest

    def _take(self, statement: Statement, before: int, number: int) -> None:
        if statement.number != number:
            self._find(f"found the statement {statement.number} in the place of {number}", before, number)
            self.heads = None
            return
        is_next = number == before + 1 and self._previous_sha256 is not None
        if is_next and statement.previous_sha256 != self._previous_sha256:
            expected = f"expected {self._previous_sha256}"
            self._find(
                f"it follows one with sha256 {statement.previous_sha256[:16]}…, {expected[:25]}…",
                before,
                number,
            )
        if self.signed_at and statement.signed_at < self.signed_at:
            self._find("it was signed before the one before it", before, number)
        self.signed_at = statement.signed_at
        self._compare_heads(statement, before)
        self._compare_with_anchors(statement)
        self._knew_all |= self.heads is not None

    def _compare_heads(self, statement: Statement, before: int) -> None:
        """What a statement does not name is signed with it too."""
        if self.heads is None and not statement.is_full:
            if statement.number == self.first:
                detail = "it names only what moved, and those before it, from a full one on, are not whole"
                self._find(detail, before, statement.number)
            return
        self.heads = moved_on(self.heads or {}, statement)
        if not agrees(self.heads, statement):
            detail = "it was signed over other heads than it and those before it name"
            self._find(detail, before, statement.number)
            self.heads = None

    def _compare_with_anchors(self, statement: Statement) -> None:
        named = heads_of(statement)
        is_first = statement.number == self.first
        for chain in ((is_first and self.heads) or named).values():
            self._anchor(chain, statement.number)
        for partition in self.anchors.keys() - named.keys() if statement.is_full else ():
            self._contradiction(partition, statement.number, "it is not named any more")

    def _anchor(self, chain: Chain, number: int) -> None:
        partition = chain.topic_partition
        known = self.anchors.setdefault(partition, self._genesis(chain, number) if self._knew_all else [])
        last = known[-1] if known else None
        if last and chain.start_offset != last.start_offset:
            self._restart_chain(chain, last, number)
            known[:] = self._genesis(chain, number)
        elif last and chain.next_offset < last.next_offset:
            detail = f"it goes back from offset {last.next_offset} to {chain.next_offset}"
            self._contradiction(partition, number, detail)
            return
        anchor = Anchor(
            number, chain.start_offset, chain.next_offset, chain.link, chain.oldest_ms, chain.newest_ms
        )
        if known and anchor.next_offset == known[-1].next_offset:
            if anchor.link != known[-1].link:
                self._contradiction(partition, number, f"two links at offset {anchor.next_offset}")
        else:
            known.append(anchor)

    def _genesis(self, chain: Chain, number: int) -> list[Anchor]:
        """Return the anchor where the chain begins, which needs no statement."""
        start = chain.start_offset
        return [Anchor(number - 1, start, start, begin(chain.topic_partition, at=start).link)]

    def _restart_chain(self, chain: Chain, last: Anchor, number: int) -> None:
        if chain.start_offset <= last.next_offset:
            detail = f"its chain begins again at offset {chain.start_offset}"
            self._contradiction(chain.topic_partition, number, detail)
            return
        self.findings.append(
            Finding(
                "unread",
                "they were gone before the auditor had read them: nobody can vouch for them",
                chain.topic_partition,
                range(last.next_offset, chain.start_offset),
                (last.number, number),
            )
        )

    def _contradiction(self, partition: Partition, number: int, detail: str) -> None:
        self.findings.append(Finding("statement", detail, partition, between=(number - 1, number)))

    def _find(self, detail: str, before: int, number: int) -> None:
        self.findings.append(Finding("statement", detail, between=(before, number)))
