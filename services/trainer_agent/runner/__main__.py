"""`python -m services.trainer_agent.runner`: one node of one attempt, described by RUNNER_* variables."""

import asyncio
import os
import sys
from pathlib import Path

from services.trainer_agent.runner.journal import Journal
from services.trainer_agent.runner.logs import LogShipper
from services.trainer_agent.runner.runner import Runner
from services.trainer_agent.runner.settings import Settings
from services.trainer_agent.runner.signer import NodeSigner
from shared.log import configure_logging, get_logger
from shared.storage.presigned import PresignedObjectStore

EXIT_CRASHED = 1

log = get_logger(__name__)


def main() -> None:
    settings = Settings()
    settings.work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log_file = settings.work_dir / "log"
    _write_everything_to(log_file)
    configure_logging("runner")
    code = EXIT_CRASHED
    try:
        code = asyncio.run(_run(settings, log_file))
    except Exception:
        log.exception("runner crashed")
    # Threads of aborted transfers may hang in the network: nobody waits for them.
    sys.stderr.flush()
    os._exit(code)


async def _run(settings: Settings, log_file: Path) -> int:
    log.info("runner started", node_id=settings.node_id, devices=settings.devices)
    objects = PresignedObjectStore(NodeSigner(settings), ca_file=settings.tls.ca_file)
    journal = Journal(settings.work_dir / "journal.jsonl")
    shipper = LogShipper(
        objects,
        journal,
        log_file,
        job_id=settings.job_id,
        attempt=settings.attempt,
        node_index=settings.node_index,
    )
    return await Runner(settings, objects, journal, shipper).run()


def _write_everything_to(file: Path) -> None:
    """Write our own output to a file and, by inheritance, that of every process below us."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(handle, number)
    os.close(handle)


if __name__ == "__main__":
    main()
