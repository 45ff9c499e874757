"""Files that appear whole or not at all: a reader never sees half of one, and no two writers mix theirs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write the file, replacing one that is there."""
    with _draft(path, content, mode) as draft:
        draft.replace(path)


def create_whole(path: Path, content: str | bytes, *, mode: int = 0o600) -> bool:
    """Write the file unless there is one, also of a writer at the same moment. Return whether this call wrote it."""
    with _draft(path, content, mode) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        return True


@contextmanager
def _draft(path: Path, content: str | bytes, mode: int) -> Iterator[Path]:
    """Write the content beside `path`, under a name that no other writer takes, in another thread or process."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
