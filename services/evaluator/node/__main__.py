"""`python -m services.evaluator.node`: the node of one evaluation's lease, described by RUNNER_* variables."""

import asyncio

from services.evaluator.node.node import Node
from services.evaluator.node.settings import Settings
from shared.log import configure_logging, get_logger

log = get_logger(__name__)


def main() -> None:
    settings = Settings()
    settings.work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    configure_logging("scoring-node")
    log.info("node started", node_id=settings.node_id, lease_id=settings.lease_id)
    asyncio.run(Node(settings).run())


if __name__ == "__main__":
    main()
