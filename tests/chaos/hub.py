"""A hub of models with one repository: what the hub's own client asks for, over HTTP, or an error in its place."""

import hashlib
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

from tests.chaos.proxies import LOOPBACK

REPOSITORY, COMMIT = "org/tiny", "c0ffee" + "0" * 34


class Hub:
    """Of the models in a directory. `with Hub(directory) as hub` answers at once; its port stays the same."""

    def __init__(self, directory: Path) -> None:
        self.offer(directory)
        self.error: HTTPStatus | None = None
        """What everything is answered with."""
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def __enter__(self) -> "Hub":
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()

    def offer(self, directory: Path) -> None:
        """The repository has these files from now on."""
        self.directory = directory
        self.files = {path.name: path.read_bytes() for path in directory.iterdir()}

    def refuse(self) -> None:
        """Nobody listens at the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail(self) -> None:
        self.error = HTTPStatus.SERVICE_UNAVAILABLE

    def come_back(self) -> None:
        if self.error:
            self.error = None
            return
        self._server = _Server((LOOPBACK, self._port), self)
        self._port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], hub: Hub) -> None:
        super().__init__(address, _Answer)
        self.hub = hub


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub, path = self.server.hub, urlsplit(self.path).path
        name = path.rpartition("/")[2]
        if hub.error:
            self._say(b"", hub.error)
        elif path == f"/api/models/{REPOSITORY}/revision/{COMMIT}":
            files = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
            self._say_json({"id": REPOSITORY, "sha": COMMIT, "siblings": files})
        elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": _id_of(data)}
                for name, data in hub.files.items()
            ]
            self._say_json(files)
        elif path == f"/{REPOSITORY}/resolve/{COMMIT}/{name}" and name in hub.files:
            data = hub.files[name]
            self._say(data, ETag=f'"{_id_of(data)}"', **{"X-Repo-Commit": COMMIT})
        else:
            self._say(b"", HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815 http.server's name

    def log_message(self, *_: object) -> None:
        """A test's output is its own."""

    def _say_json(self, document: object) -> None:
        self._say(json.dumps(document).encode(), **{"Content-Type": "application/json"})

    def _say(self, body: bytes, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _id_of(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
