"""Exports as a person takes them away: followed, downloaded, continued, and whole or not there."""

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.commands import models
from tests.unit.cli.commandline import CommandLine

NAME = "ft:tiny:demo:x:12345678"
EXPORT_ID = "export-ftjob-1-12345678-safetensors"
WEIGHTS, CONFIG = bytes(range(256)) * 20, b"{}"
PATH = f"/models/{NAME}/exports"


def a_file(path: str, content: bytes) -> dict[str, Any]:
    return {"path": path, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def an_export(status: str = "ready", **changes: Any) -> dict[str, Any]:
    files = [a_file("model.safetensors", WEIGHTS), a_file("config.json", CONFIG)]
    is_ready = status == "ready"
    parity = {"mean_kl": 2.7e-5, "kl_limit": 1e-3, "equal_next_tokens": 0.99}
    return {
        "id": EXPORT_ID,
        "format": "safetensors",
        "quantization": None,
        "status": status,
        "bytes": len(WEIGHTS) + len(CONFIG),
        "files": files if is_ready else [],
        "parity": parity if is_ready else None,
        "progress": None,
        "error": None,
        **changes,
    }


def served(retune: CommandLine, content: bytes = WEIGHTS) -> None:
    """The platform has a ready export, and answers ranges of its files."""

    def weights(request: httpx.Request) -> httpx.Response:
        first = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        return httpx.Response(206 if first else 200, content=content[first:])

    retune.answers[f"POST {PATH}"] = an_export()
    retune.answers[f"GET {PATH}/{EXPORT_ID}/files/model.safetensors"] = weights
    retune.answers[f"GET {PATH}/{EXPORT_ID}/files/config.json"] = lambda _: httpx.Response(
        200, content=CONFIG
    )


def export(retune: CommandLine, out: Path) -> tuple[int, str, str]:
    return retune.run("models", "exports", NAME, "--format", "safetensors", "--out", str(out))


def test_is_followed_and_downloaded(retune: CommandLine, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(models, "POLL_SECONDS", 0)
    served(retune)
    progress = {"activity": "writing", "done": 1, "total": 4, "seconds_left": 6.0}
    retune.answers[f"POST {PATH}"] = an_export("running", progress=progress)
    retune.answers[f"GET {PATH}/{EXPORT_ID}"] = an_export()
    code, out, err = export(retune, tmp_path / "model")
    assert code == 0, err
    assert "writing 25%, 6 s left" in err
    assert "divergence from the trained model 2.7e-05 nats of at most 0.001, 99.0% equal next tokens" in out
    assert (tmp_path / "model/model.safetensors").read_bytes() == WEIGHTS
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.safetensors", "config.json"}


def test_goes_on_where_a_download_was_cut_off(retune: CommandLine, tmp_path: Path) -> None:
    served(retune)
    (tmp_path / "model.safetensors.part").write_bytes(WEIGHTS[:1000])
    (tmp_path / "config.json").write_bytes(CONFIG)
    assert export(retune, tmp_path)[0] == 0
    asked = [request for request in retune.requests if "/files/" in request.url.path]
    assert [request.headers.get("range") for request in asked] == ["bytes=1000-"]
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_is_not_there_with_other_bytes(retune: CommandLine, tmp_path: Path) -> None:
    served(retune, content=WEIGHTS[:-1] + b"x")
    code, _, err = export(retune, tmp_path)
    assert (code, list(tmp_path.iterdir())) == (1, [])
    assert "model.safetensors: found sha256" in err


@pytest.mark.parametrize("path", ["../config.json", "/etc/passwd", "a/b"])
def test_leaves_its_folder_under_no_name(retune: CommandLine, tmp_path: Path, path: str) -> None:
    retune.answers[f"POST {PATH}"] = an_export(files=[a_file(path, CONFIG)])
    code, _, err = export(retune, tmp_path)
    assert code == 1
    assert "expected a name without a folder" in err


def test_that_failed_says_why(retune: CommandLine, tmp_path: Path) -> None:
    failed = an_export("failed", error={"code": "parity", "message": "the files are too far"})
    retune.answers[f"POST {PATH}"] = failed
    code, _, err = export(retune, tmp_path)
    assert code == 1
    assert f"{EXPORT_ID}: the files are too far" in err


def test_is_listed_without_a_format(retune: CommandLine) -> None:
    retune.answers[f"GET {PATH}"] = {"data": [an_export()], "has_more": False}
    code, out, _ = retune.run("models", "exports", NAME)
    assert code == 0
    assert EXPORT_ID in out
    assert retune.run("models", "exports", NAME, "--out", "x")[0] == 2
