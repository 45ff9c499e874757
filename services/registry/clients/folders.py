"""A model's files before any of them is read or copied: regular ones alone, and no more than an import may take."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from services.registry.decide.base_models import BadBaseModel
from shared.model_files.models import MODEL_SUFFIXES

KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFREG: "a regular file",
}


@dataclass(frozen=True)
class Limits:
    """How many files one base model may have, and how large they may be, each and together."""

    files: int
    file_bytes: int
    total_bytes: int


def is_kept(name: str) -> bool:
    """Return whether a base model may be made of a file of that name."""
    return "/" not in name and PurePath(name).suffix.lower() in MODEL_SUFFIXES


def require_importable(directory: Path, limits: Limits) -> None:
    """Raise BadBaseModel where something in it is neither a regular file nor a directory, or too large.

    Directories below it are left behind, as files of other suffixes are.
    """
    _require_kind(directory, os.lstat(directory) if os.path.lexists(directory) else None, stat.S_IFDIR)
    with os.scandir(directory) as entries:
        heads = {each.name: each.stat(follow_symlinks=False) for each in islice(entries, limits.files + 1)}
    _require_count(str(directory), len(heads), limits)
    for name, head in heads.items():
        if not stat.S_ISDIR(head.st_mode):
            _require_kind(directory / name, head, stat.S_IFREG)
    files = {name: head.st_size for name, head in heads.items() if stat.S_ISREG(head.st_mode)}
    require_bounded(str(directory), files, limits)


def require_bounded(where: str, sizes: Mapping[str, int], limits: Limits) -> None:
    """Raise BadBaseModel where the files, those that are left behind not counted, are too many or too large."""
    kept = {name: size for name, size in sizes.items() if is_kept(name)}
    _require_count(where, len(kept), limits)
    for name, size in sorted(kept.items()):
        if size > limits.file_bytes:
            raise BadBaseModel(f"{name} in {where}: found {size} bytes, expected at most {limits.file_bytes}")
    if (total := sum(kept.values())) > limits.total_bytes:
        raise BadBaseModel(
            f"{where}: found {total} bytes in {len(kept)} files, expected at most {limits.total_bytes}"
        )


def _require_count(where: str, count: int, limits: Limits) -> None:
    if count > limits.files:
        raise BadBaseModel(f"{where}: found more than {limits.files} files, expected at most {limits.files}")


def _require_kind(path: Path, head: os.stat_result | None, expected: int) -> None:
    if head is None:
        raise BadBaseModel(f"{path}: found nothing on the registry's machine, expected {KINDS[expected]}")
    kind = stat.S_IFMT(head.st_mode)
    if kind != expected:
        advice = "; copy what it names (cp -rL)" if kind == stat.S_IFLNK else ""
        raise BadBaseModel(f"{path}: found {KINDS[kind]}, expected {KINDS[expected]}{advice}")
