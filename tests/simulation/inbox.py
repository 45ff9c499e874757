"""What a service has applied, how far each story came, and what waits for its parent."""

from tests.simulation.log import Record

Story = tuple[str, str]


class Inbox:
    def __init__(self) -> None:
        self._applied: set[tuple[str, str]] = set()
        self._positions: dict[Story, int] = {}

    def admit(self, record: Record, *, has_inbox: bool) -> str:
        """`next`, `duplicate` or `gap`, as `Consumer._admit` finds it."""
        if not has_inbox:
            return "next"
        if (record.topic.name, record.id) in self._applied:
            return "duplicate"
        if record.sequence is None:
            return "next"
        last = self._positions.get((record.topic.name, record.key))
        if last is None or record.sequence == last + 1:
            return "next"
        return "duplicate" if record.sequence <= last else "gap"

    def add(self, record: Record) -> None:
        self._applied.add((record.topic.name, record.id))
        self._move(record)

    def skip(self, record: Record) -> bool:
        """Move the story on without applying; False where the record is not the next one."""
        last = self._positions.get((record.topic.name, record.key))
        if last is not None and record.sequence is not None and record.sequence > last + 1:
            return False
        self._move(record)
        return True

    def _move(self, record: Record) -> None:
        if record.sequence is not None:
            story = (record.topic.name, record.key)
            self._positions[story] = max(record.sequence, self._positions.get(story, 0))


class Waiting:
    def __init__(self) -> None:
        self.rows: dict[int, tuple[Record, str, float]] = {}
        self.stories: dict[Story, list[int]] = {}
        self._last = 0

    def add(self, record: Record, parent: str, expires: float) -> None:
        story = (record.topic.name, record.key)
        if any(self.rows[number][0].id == record.id for number in self.stories.get(story, ())):
            return
        self._last += 1
        self.rows[self._last] = (record, parent, expires)
        self.stories.setdefault(story, []).append(self._last)

    def is_behind(self, story: Story, row: int | None) -> bool:
        numbers = self.stories.get(story)
        return bool(numbers) and numbers[0] != row

    def is_expired(self, row: int, now: float) -> bool:
        return self.rows[row][2] < now

    def heads(self) -> list[tuple[int, Record]]:
        return [(numbers[0], self.rows[numbers[0]][0]) for numbers in self.stories.values()]

    def remove(self, row: int) -> None:
        record = self.rows.pop(row)[0]
        story = (record.topic.name, record.key)
        self.stories[story].remove(row)
        if not self.stories[story]:
            del self.stories[story]
