"""The folders of attempts, which a backend and the nodes of the attempts both see.

<nodes>/<attempt name>/spec.json     what was asked for, written once
                       stopped       nothing may start here any more
                       <index>/grant      id of the node, for as long as it may continue without being heard
                               exit       exit code of its runner
                               key        private key of the node, which proves its claims
                               notice     when it will be ended
                               work/      the runner's own
<nodes>/forgotten/<day>/<attempt name>   its end is stored: logs, exit codes, and the mark that the name is used up
"""

import json
import shutil
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path

from schemas.layout import is_dns_label
from services.provisioner.backends.protocol import AttemptSpec, SpecConflict
from services.provisioner.model import node_id
from shared.clock import utc_now
from shared.files import create_whole, write_whole

MODE = 0o700


class AttemptFolders:
    def __init__(self, nodes_dir: Path, *, logs_retention: timedelta) -> None:
        self.nodes_dir = nodes_dir
        self._forgotten = nodes_dir / "forgotten"
        self._logs_retention = logs_retention

    def folder(self, name: str) -> Path:
        """Return the attempt's folder. Raises SpecConflict where the name is none for a folder."""
        if not is_dns_label(name):
            raise SpecConflict(f"attempt name is {name[:80]!r}, expected a DNS label")
        return self.nodes_dir / name

    def attempts(self) -> Iterator[Path]:
        """Yield the folders of attempts and of nodes of leases that are not forgotten."""
        yield from sorted(self.nodes_dir.glob("[ar]-*"))

    def claim(self, spec: AttemptSpec) -> Path:
        """Write the specification once; if it is there already it must be the same, and the name not used up."""
        root = self.folder(spec.name)
        root.mkdir(parents=True, exist_ok=True, mode=MODE)
        path = root / "spec.json"
        if not create_whole(path, json.dumps({"digest": spec.digest, **spec.fields})):
            digest = json.loads(path.read_text())["digest"]
            if digest != spec.digest:
                raise SpecConflict(f"{spec.name} exists with spec {digest}, asked for {spec.digest}")
        # Last: a folder that is moved away from here on takes the nodes that would start in it along.
        if is_stopped(root) or self.is_forgotten(spec.name):
            raise SpecConflict(f"{spec.name} was stopped; a new attempt needs a new name")
        return root

    def stop(self, name: str) -> Path | None:
        """Take the name, so that nothing starts there any more. None: it is forgotten already."""
        root = self.folder(name)
        if self.is_forgotten(name) and not root.exists():
            return None
        root.mkdir(parents=True, exist_ok=True, mode=MODE)
        (root / "stopped").touch()
        return root

    def is_forgotten(self, name: str) -> bool:
        return any((day / name).exists() for day in self._days())

    def forget(self, name: str) -> None:
        """Free the disk; keep what explains the end, out of the way of whoever looks at what is there."""
        root = self.folder(name)
        for node in nodes_of(root):
            shutil.rmtree(node / "work", ignore_errors=True)
            (node / "key").unlink(missing_ok=True)
        if self.is_forgotten(name):
            shutil.rmtree(root, ignore_errors=True)
        else:
            today = self._forgotten / utc_now().date().isoformat()
            today.mkdir(parents=True, exist_ok=True, mode=MODE)
            root.rename(today / name)
        self._remove_old_days()

    def _days(self) -> list[Path]:
        return list(self._forgotten.iterdir()) if self._forgotten.exists() else []

    def _remove_old_days(self) -> None:
        """Remove folders so old that no message could ask for one of their names again."""
        oldest = (utc_now() - self._logs_retention).date()
        for day in self._days():
            if date.fromisoformat(day.name) < oldest:
                shutil.rmtree(day, ignore_errors=True)


def is_stopped(root: Path) -> bool:
    return (root / "stopped").exists()


def nodes_of(root: Path) -> list[Path]:
    """Return the folders of the attempt's nodes, by index; none where it was never started."""
    try:
        count = json.loads((root / "spec.json").read_text())["nodes"]
    except FileNotFoundError:
        return []
    return [root / str(index) for index in range(count)]


def make_node(root: Path, index: int, key: str) -> Path:
    """Make the node's folder with its private key and its grant."""
    node = root / str(index)
    node.mkdir(exist_ok=True, mode=MODE)
    write_whole(node / "key", key)
    write_whole(node / "grant", node_id(root.name, index))
    return node


def have_keys(root: Path) -> bool:
    """Return whether each node of the attempt was given its key."""
    return all((node / "key").exists() for node in nodes_of(root))


def key_env(node: Path) -> dict[str, str]:
    """Return the variable by which a runner finds its key; none where an older release made the node."""
    key = node / "key"
    return {"RUNNER_NODE_KEY_FILE": str(key)} if key.exists() else {}


def withdraw(node: Path) -> None:
    """Take the node's grant away: a runner without one ends itself, also where nothing else reaches it."""
    (node / "grant").unlink(missing_ok=True)


def exit_code(node: Path) -> int | None:
    code = read(node / "exit")
    return int(code) if code else None


def notice_deadline(node: Path) -> datetime | None:
    text = read(node / "notice")
    return datetime.fromisoformat(text) if text else None


def read(path: Path) -> str:
    """Return what the file holds; empty where there is none."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
