"""Static files of the page: by the hash of their content, so that a browser keeps them for good."""

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
VENDOR = "vendor"
"""Folder of the npm packages' files, which `make setup` copies and no repository has."""
NEEDED = ("vendor/htmx.min.js", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")
DIGEST_CHARACTERS = 16
IMPORT = re.compile(rb'(?<=from ")\./([\w./-]+)(?=")')
"""A script of the page that another one imports, by its name."""


@dataclass(frozen=True)
class Asset:
    content: bytes
    compressed: bytes
    media_type: str
    digest: str


@cache
def assets() -> Mapping[str, Asset]:
    """All of them by name, as they were when the first one was asked for."""
    paths = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in MEDIA_TYPES]
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    if path.suffix == ".js":
        content = IMPORT.sub(lambda match: _address_of(match[1].decode()).encode(), content)
    digest = hashlib.sha256(content).hexdigest()[:DIGEST_CHARACTERS]
    return Asset(content, gzip.compress(content, mtime=0), MEDIA_TYPES[path.suffix], digest)


def _address_of(name: str) -> str:
    return f"/static/{_read(FOLDER / name).digest}/{name}"


def address(name: str) -> str:
    """Where a browser gets the file; templates name none that is not there."""
    return f"/static/{assets()[name].digest}/{name}"


def are_scripts_there() -> bool:
    """Whether `make setup` has copied the packages; without them the page has no curves and is not live."""
    return all(name in assets() for name in NEEDED)
