"""One partition, hashed again from the first anchor that the log still has, and compared at each further one."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from ops.audit.findings import Finding
from ops.audit.statements import Anchor
from shared.audit.chain import next_link
from shared.partition import Partition
from shared.record import Record

CLOCKS_APART = timedelta(minutes=5)


class Recount:
    """`log`: the offsets that the log has. Hand every record from `start` on to `take`, then `finish`."""

    def __init__(
        self,
        partition: Partition,
        anchors: Sequence[Anchor],
        log: range,
        *,
        now: datetime,
        retention: timedelta,
    ) -> None:
        self._partition = partition
        self._anchors = anchors
        self._log = log
        self._expired_ms = int((now + CLOCKS_APART - retention).timestamp() * 1000)
        self._at = next((i for i, each in enumerate(anchors) if each.next_offset >= log.start), None)
        self._link = b"" if self._at is None else anchors[self._at].link
        self._changed: list[tuple[Anchor, Anchor]] = []
        self.records = 0
        self.findings: list[Finding] = [*self._lost_head()]

    @property
    def start(self) -> int:
        return self._log.start if self._at is None else self._anchors[self._at].next_offset

    @property
    def stop(self) -> int:
        """What is from here on is covered by no statement, or is not there."""
        return max(self.start, min(self._anchors[-1].next_offset, self._log.stop))

    @property
    def not_covered(self) -> int:
        """Records before the first and behind the last anchor that can be compared."""
        behind = max(0, self._log.stop - max(self._anchors[-1].next_offset, self._log.start))
        return behind + max(0, self.start - self._log.start)

    def take(self, record: Record) -> None:
        if record.offset >= self.stop:
            return
        self._compare_up_to(record.offset)
        self._link = next_link(self._link, record)
        self.records += 1

    def finish(self) -> list[Finding]:
        self._compare_up_to(self.stop)
        return [*self.findings, *self._lost_tail(), *self._changes()]

    def _compare_up_to(self, offset: int) -> None:
        """Compare at each anchor up to here; behind one that differs, continue with what was signed."""
        while self._at is not None and self._at + 1 < len(self._anchors):
            before, anchor = self._anchors[self._at], self._anchors[self._at + 1]
            if anchor.next_offset > offset:
                return
            if anchor.link != self._link:
                self._changed.append((before, anchor))
            self._link = anchor.link
            self._at += 1

    def _lost_head(self) -> list[Finding]:
        """Retention takes what is older than the topic keeps; nothing else may be gone."""
        for before, anchor in zip(self._anchors, self._anchors[1:], strict=False):
            if before.next_offset >= self._log.start:
                break
            is_whole = anchor.next_offset <= self._log.start
            time_ms = anchor.newest_ms if is_whole else anchor.oldest_ms
            if time_ms is not None and time_ms > self._expired_ms:
                gone = range(before.next_offset, self._log.start)
                return [
                    Finding(
                        "deleted",
                        "gone from the head of the log before their time was over",
                        self._partition,
                        gone,
                        (before.number, anchor.number),
                    )
                ]
        return []

    def _lost_tail(self) -> list[Finding]:
        end, last = max(self._log.stop, self._anchors[0].next_offset), self._anchors[-1]
        if end >= last.next_offset:
            return []
        before = max(
            (each for each in self._anchors if each.next_offset <= end), key=lambda each: each.number
        )
        detail = f"the log ends at {self._log.stop}, was read up to {last.next_offset}"
        gone = range(end, last.next_offset)
        return [Finding("truncated", detail, self._partition, gone, (before.number, last.number))]

    def _changes(self) -> list[Finding]:
        runs: list[tuple[Anchor, Anchor]] = []
        for before, anchor in self._changed:
            if runs and runs[-1][1] == before:
                runs[-1] = runs[-1][0], anchor
            else:
                runs.append((before, anchor))
        return [
            Finding(
                "changed",
                "a record was edited, left out, added or moved",
                self._partition,
                range(before.next_offset, anchor.next_offset),
                (before.number, anchor.number),
            )
            for before, anchor in runs
        ]
