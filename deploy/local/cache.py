"""What is fetched or built once per user: each entry a folder that appears whole, named by version, hash."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.local import files
from deploy.local.settings import Settings


def cache_folder() -> Path:
    """`$RETUNE_CACHE`, else `retune` in the user's cache folder."""
    settings = Settings()
    return files.folder(settings.cache or settings.user_cache / "retune", mode=0o755)


def cached(
    name: str,
    *,
    is_complete: Callable[[Path], bool],
    make: Callable[[Path], None],
    takes: str = "it takes a minute or two",
) -> Path:
    """The folder of that name; `make` fills an empty one, which becomes the entry only if `is_complete`."""
    entry = cache_folder() / name
    if is_complete(entry):
        return entry
    with files.locked(cache_folder() / f"{name}.lock"):
        if not is_complete(entry):
            print(f"making {name}, once per user; {takes}", flush=True)
            _fill(entry, is_complete, make)
    return entry


def _fill(entry: Path, is_complete: Callable[[Path], bool], make: Callable[[Path], None]) -> None:
    files.require_free_space(entry.parent, "RETUNE_CACHE")
    draft = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    draft.chmod(0o755)
    try:
        make(draft)
        assert is_complete(draft), f"what was made for {entry.name} is not complete"
        shutil.rmtree(entry, ignore_errors=True)
        draft.rename(entry)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
