"""A replica as a process of its own, for a controller that is killed: stands in for vLLM.

Run with vLLM's options. Imported, it makes the controller start such replicas; run as a program with
`controller`, it is that controller.
"""

import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def serve(options: dict[str, str]) -> None:
    from services.serving_controller.clients.backend import ReplicaSpec
    from tests.integration import engines

    name = "it"
    spec = ReplicaSpec(name, "", Path(options["--model"]), options["--served-model-name"], 8)
    replicas = engines.Engines(Path(), running={name: engines.Engine(spec)})

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            """Whatever the method, the same answers."""
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            key = {"authorization": f"Bearer {replicas.management_key(name)}"}
            url = f"{engines.HOST}.{name}{self.path}"
            answer = replicas._answer(httpx.Request(self.command, url, content=content, headers=key))
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

    ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()


def control() -> None:
    from services.serving_controller import app
    from services.serving_controller.clients.local import Engine
    from services.serving_controller.settings import Settings

    @dataclass(frozen=True)
    class StandIn(Engine):
        def argv(self, spec, port, *, certificate=None):
            argv = super().argv(spec, port, certificate=certificate)
            options = [option for option in argv if option.startswith("--")]
            return [sys.executable, __file__, *options]

    class StandInSettings(Settings):
        @property
        def engine(self) -> Engine:
            return StandIn(max_loras=self.max_loras, reads=(ROOT / "tests", ROOT / "bench"))

    app.build(StandInSettings()).run()


if __name__ == "__main__":
    if sys.argv[1:] == ["controller"]:
        control()
    else:
        serve(dict(option.partition("=")[::2] for option in sys.argv[1:]))
