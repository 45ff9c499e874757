"""From statements in their order to anchors: offsets of each partition whose link was signed."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime

from schemas.audit import NOTHING_BEFORE, PartitionRead, Statement
from services.admin.audit.findings import Finding
from shared.audit.chain import begin
from shared.audit.signing import BadSignature, PublicKey
from shared.place import Place


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
    anchors: dict[Place, list[Anchor]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    number: int = 0
    """Of the last that was taken."""
    signed_at: datetime | None = None
    _previous_sha256: str | None = None

    def __post_init__(self) -> None:
        self.number = self.first - 1
        self._previous_sha256 = NOTHING_BEFORE if self.first == 1 else None

    def take(self, number: int, document: bytes) -> None:
        """The object that is named `number`; those that were left out are missing."""
        before, self.number = self.number, number
        if number != before + 1:
            self._find(f"missing are {before + 1}–{number - 1}", before, number)
        digest = hashlib.sha256(document).hexdigest()
        try:
            statement = self.key.open(document)
        except BadSignature as error:
            self._find(str(error), before, number)
        else:
            self._take(statement, before, number)
        self._previous_sha256 = digest

    def _take(self, statement: Statement, before: int, number: int) -> None:
        if statement.number != number:
            self._find(f"found the statement {statement.number} in the place of {number}", before, number)
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
        self._compare_with_anchors(statement)

    def _compare_with_anchors(self, statement: Statement) -> None:
        named = {Place(said.topic, said.partition): said for said in statement.partitions}
        for place, said in named.items():
            self._anchor(place, said, statement.number)
        for place in self.anchors.keys() - named.keys():
            self._contradiction(place, statement.number, "it is not named any more")

    def _anchor(self, place: Place, said: PartitionRead, number: int) -> None:
        known = self.anchors.setdefault(place, self._genesis(place, said, number))
        last = known[-1] if known else None
        if last and said.start_offset != last.start_offset:
            self._begin_anew(place, said, last, number)
            known[:] = self._genesis(place, said, number, is_first=True)
        elif last and said.next_offset < last.next_offset:
            self._contradiction(
                place, number, f"it goes back from offset {last.next_offset} to {said.next_offset}"
            )
            return
        anchor = Anchor(
            number,
            said.start_offset,
            said.next_offset,
            bytes.fromhex(said.link),
            said.oldest_ms,
            said.newest_ms,
        )
        if known and anchor.next_offset == known[-1].next_offset:
            if anchor.link != known[-1].link:
                self._contradiction(place, number, f"two links at offset {anchor.next_offset}")
        else:
            known.append(anchor)

    def _genesis(
        self, place: Place, said: PartitionRead, number: int, *, is_first: bool = False
    ) -> list[Anchor]:
        """Where the chain begins, unless it had begun before the statements that are looked at."""
        if number == self.first != 1 and not is_first:
            return []
        start = said.start_offset
        return [Anchor(number - 1, start, start, begin(place, at=start).link)]

    def _begin_anew(self, place: Place, said: PartitionRead, last: Anchor, number: int) -> None:
        if said.start_offset <= last.next_offset:
            self._contradiction(place, number, f"its chain begins anew at offset {said.start_offset}")
            return
        self.findings.append(
            Finding(
                "unread",
                "they were gone before the auditor had read them: nobody can vouch for them",
                place,
                range(last.next_offset, said.start_offset),
                (last.number, number),
            )
        )

    def _contradiction(self, place: Place, number: int, detail: str) -> None:
        self.findings.append(Finding("statement", detail, place, between=(number - 1, number)))

    def _find(self, detail: str, before: int, number: int) -> None:
        self.findings.append(Finding("statement", detail, between=(before, number)))
