"""Invariants of the message kernel: I1 to I4, what was written, sent, applied and in which order."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ops.doctor.finding import Finding
from ops.doctor.history import Entry, EventStream, History, Kernel, Limits, Row
from schemas.topics import LISTENS, SERVICES, Topic, listens_to_tenants
from shared.messaging.delivery import topic_named

INBOX_KEPT = timedelta(days=29)
"""A day less than the kernel keeps, so that no row is missed that was pruned a moment ago."""
DAY = timedelta(days=1)


def published(history: History, limits: Limits) -> Iterator[Finding]:
    """I1: every committed row of an outbox is in its topic, at least once."""
    for service, kernel in history.kernels.items():
        yield from _not_sent(service, kernel.outbox, history, limits)
        for row in kernel.outbox:
            if row.set_aside:
                yield Finding(
                    f"{service}.outbox event {row.event_id} ({row.type} of {row.key})",
                    f"set aside: {row.set_aside}",
                    f"its record in {row.topic}; `retune relay send` once Kafka takes it, or `relay drop`",
                )
            if _should_be_there(row, history, limits) and (row.topic, row.event_id) not in history.ids:
                yield Finding(
                    f"{service}.outbox event {row.event_id} ({row.type} of {row.key})",
                    f"written at {row.created_at} and sent, not in {row.topic}",
                    "its record; `retune relay republish` sends it again",
                )


def _not_sent(service: str, outbox: Iterable[Row], history: History, limits: Limits) -> Iterator[Finding]:
    oldest_allowed = history.read_at - limits.grace
    waiting = [row for row in outbox if not row.is_published and row.created_at < oldest_allowed]
    if waiting:
        since = min(row.created_at for row in waiting)
        yield Finding(
            f"{service}.outbox",
            f"{len(waiting)} rows not published, the oldest since {since}",
            f"each in its topic within {limits.grace.total_seconds():g} s",
        )


def _should_be_there(row: Row, history: History, limits: Limits) -> bool:
    """Not what may have been sent while the topics were read, nor what they no longer keep."""
    kept = timedelta(days=topic_named(row.topic).retention_days) - DAY
    age = history.began_at - row.created_at
    return row.is_published and not row.set_aside and limits.grace < age < kept


def no_phantoms(history: History, limits: Limits) -> Iterator[Finding]:
    """I2: every record that a service should have written is a row of its outbox, and is what the row says."""
    windows = _first_known(history)
    for entry in history.ids.values():
        topic = topic_named(entry.topic)
        if topic.tenant is not None:
            continue
        if entry.type and entry.writer not in topic.writers:
            yield _phantom(entry, f"written by {entry.writer!r}", f"one of {', '.join(topic.writers)}")
            continue
        row = _row_of(entry, topic, history)
        if row is not None:
            yield from _altered(entry, row)
        elif _needs_row(entry, topic, history, windows):
            writer = entry.writer or " or ".join(topic.writers)
            yield _phantom(entry, "no row", f"a row in the outbox of {writer}")


def _row_of(entry: Entry, topic: Topic, history: History) -> Row | None:
    writers = [entry.writer] if entry.writer else topic.writers
    event_id = entry.topic, entry.event_id
    rows = (history.kernels[name].by_id.get(event_id) for name in writers if name in history.kernels)
    return next((row for row in rows if row is not None), None)


def _needs_row(
    entry: Entry, topic: Topic, history: History, windows: Mapping[tuple[str, int, str], int]
) -> bool:
    """Whether it cannot be one whose row was pruned, nor one of a writer without an outbox."""
    writers = [entry.writer] if entry.writer else list(topic.writers)
    if any(writer not in SERVICES for writer in writers):
        return False
    return all(
        _is_in_window(entry, writer, history.kernels[writer], windows)
        for writer in writers
        if writer in history.kernels
    )


def _is_in_window(
    entry: Entry, writer: str, kernel: Kernel, windows: Mapping[tuple[str, int, str], int]
) -> bool:
    """Rows are pruned oldest first, so whatever follows a record that has its row must have one, too."""
    if kernel.is_whole:
        return True
    first = windows.get((entry.topic, entry.partition, writer))
    return first is not None and entry.offset > first


def _first_known(history: History) -> Mapping[tuple[str, int, str], int]:
    """(topic, partition, writer) -> offset of the first record that has a row."""
    first: dict[tuple[str, int, str], int] = {}
    for entry in history.entries:
        kernel = history.kernels.get(entry.writer)
        if kernel is not None and (entry.topic, entry.event_id) in kernel.by_id:
            first.setdefault((entry.topic, entry.partition, entry.writer), entry.offset)
    return first


def _altered(entry: Entry, row: Row) -> Iterator[Finding]:
    sequence = row.sequence if topic_named(entry.topic).is_event_stream else None
    recorded = (entry.key, entry.type, entry.sequence, entry.sha256.hex()[:16])
    written = (row.key, row.type, sequence, row.sha256.hex()[:16])
    if recorded != written:
        yield _phantom(entry, str(recorded), f"key, type, sequence and payload of its outbox row, {written}")


def _phantom(entry: Entry, actual: str, expected: str) -> Finding:
    return Finding(f"{entry.location} {entry.type or 'unreadable record'} of {entry.key!r}", actual, expected)


def once(history: History, limits: Limits) -> Iterator[Finding]:
    """I3: every record that a service listens to was applied once, or set aside, and had one effect."""
    for service, kernel in history.kernels.items():
        yield from _repeated(service, kernel, history)
        for topic in _topics_read(service, history):
            yield from _not_applied(service, kernel, topic, history, limits)
            yield from _applied_otherwise(service, kernel, topic, history)


def _repeated(service: str, kernel: Kernel, history: History) -> Iterator[Finding]:
    """What one transaction emits has one time; another transaction for the same cause would have another.

    Copies have the time and the cause of their originals.
    """
    times: dict[str, set[datetime]] = defaultdict(set)
    for row in kernel.outbox:
        if row.causation_id and not topic_named(row.topic).is_copy:
            times[row.causation_id].add(row.time)
    read = _topics_read(service, history)
    for cause, seen in times.items():
        if len(seen) > 1 and len(seen) > sum((topic, cause) in history.ids for topic in read):
            yield Finding(
                f"{service}.outbox, effects of event {cause}",
                f"{len(seen)} transactions, at {', '.join(map(str, sorted(seen)))}",
                "one",
            )


def _topics_read(service: str, history: History) -> list[str]:
    topics = [topic.name for topic in LISTENS.get(service, ())]
    if listens_to_tenants(service):
        topics += sorted({entry.topic for entry in history.entries if topic_named(entry.topic).tenant})
    return topics


def _not_applied(
    service: str, kernel: Kernel, topic: str, history: History, limits: Limits
) -> Iterator[Finding]:
    known = _types_in_inbox(kernel, topic, history)
    missed = [
        entry
        for entry in history.of_topic(topic)
        if _is_due(entry, history, limits) and not _is_accounted(entry, kernel, known)
    ]
    if missed:
        first = missed[0]
        yield Finding(
            f"{service}, records of {topic}",
            f"{len(missed)} neither applied nor set aside, first {first.location} ({first.type} of {first.key})",
            f"each applied, waiting or parked within {limits.grace.total_seconds():g} s",
        )


def _is_due(entry: Entry, history: History, limits: Limits) -> bool:
    """Records without a time are parked at once."""
    time = entry.time or history.began_at
    return history.read_at - INBOX_KEPT < time < history.read_at - limits.grace


def _is_accounted(entry: Entry, kernel: Kernel, known: frozenset[str]) -> bool:
    if (entry.topic, entry.event_id) in kernel.held_ids:
        return True
    if not entry.type:
        return (entry.topic, entry.partition, entry.offset) in kernel.held
    if topic_named(entry.topic).is_event_stream:
        return kernel.positions.get((entry.topic, entry.key), 0) >= (entry.sequence or 0)
    return entry.type not in known or (entry.topic, entry.event_id) in kernel.inbox


def _types_in_inbox(kernel: Kernel, topic: str, history: History) -> frozenset[str]:
    """Types of a topic without numbers that the service has a handler for, as far as can be seen."""
    return frozenset(
        entry.type for entry in history.of_topic(topic) if (topic, entry.event_id) in kernel.inbox
    )


def _applied_otherwise(service: str, kernel: Kernel, topic: str, history: History) -> Iterator[Finding]:
    """The first payload of an id wins; another one is parked."""
    for entry in history.of_topic(topic):
        applied = kernel.inbox.get((topic, entry.event_id), entry.sha256)
        is_held = (entry.topic, entry.partition, entry.offset) in kernel.held
        if applied != entry.sha256 and not is_held:
            yield Finding(
                f"{service}.inbox, {entry.location} event {entry.event_id}",
                f"applied with payload {applied.hex()[:16]}",
                f"payload {entry.sha256.hex()[:16]} as in the record",
            )


def in_order(history: History, limits: Limits) -> Iterator[Finding]:
    """I4: the numbers of an event stream are 1, 2, 3…, in the log, in the outbox and where it is read."""
    yield from _gaps_in_log(history)
    for service, kernel in history.kernels.items():
        yield from _gaps_in_outbox(service, kernel)
        yield from _read_ahead(service, kernel, history)


def _gaps_in_log(history: History) -> Iterator[Finding]:
    for topic in {entry.topic for entry in history.entries if topic_named(entry.topic).is_event_stream}:
        for key, stream in _numbered(history.of_topic(topic)).items():
            yield from _gaps(topic, key, stream)


def _numbered(entries: Iterable[Entry]) -> Mapping[str, list[Entry]]:
    streams: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.type:
            streams[entry.key].append(entry)
    return streams


def _gaps(topic: str, key: str, stream: Sequence[Entry]) -> Iterator[Finding]:
    """A batch that was sent twice reads 1 2 3 2 3 4, which every reader understands."""
    if len({entry.partition for entry in stream}) > 1:
        actual = f"records on partitions {sorted({entry.partition for entry in stream})}"
        yield Finding(f"{topic}, event stream of {key}", actual, "one partition")
        return
    ids: dict[int, str] = {}
    last: int | None = None
    for entry in stream:
        number = entry.sequence or 0
        if number not in ids and last is not None and number != last + 1:
            yield Finding(f"{entry.location} {entry.type} of {key}", f"number {number}", f"number {last + 1}")
        if ids.setdefault(number, entry.event_id) != entry.event_id:
            actual, expected = f"number {number} for event {entry.event_id}", f"event {ids[number]}"
            yield Finding(f"{entry.location} {entry.type} of {key}", actual, expected)
        last = max(number, last or 0)


def _gaps_in_outbox(service: str, kernel: Kernel) -> Iterator[Finding]:
    counts: Counter[EventStream] = Counter()
    lowest: dict[EventStream, int] = {}
    for row in kernel.outbox:
        stream = (row.topic, row.key)
        counts[stream] += 1
        lowest[stream] = min(row.sequence, lowest.get(stream, row.sequence))
    for stream, count in counts.items():
        last = kernel.sequences.get(stream, 0)
        if count != last - lowest[stream] + 1:
            actual = f"{count} rows from number {lowest[stream]} on"
            yield Finding(f"{service}.outbox, {stream[0]} of {stream[1]}", actual, f"all up to number {last}")


def _read_ahead(service: str, kernel: Kernel, history: History) -> Iterator[Finding]:
    last = {
        stream: number for writer in history.kernels.values() for stream, number in writer.sequences.items()
    }
    for (topic, key), position in kernel.positions.items():
        writers = topic_named(topic).writers
        if all(writer in history.kernels for writer in writers) and position > last.get((topic, key), 0):
            actual = f"read up to number {position}"
            expected = f"at most number {last.get((topic, key), 0)}, the last that was given"
            yield Finding(f"{service}.position, {topic} of {key}", actual, expected)
