"""What a service and its worker say to each other: an order in a file, then messages, each a line of JSON."""

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

Order = TypeVar("Order", bound=BaseModel)

ORDER = "order.json"


def write_order(work_dir: Path, order: BaseModel) -> Path:
    path = work_dir / ORDER
    path.write_text(order.model_dump_json())
    return path


def read_order(path: Path, kind: type[Order]) -> Order:
    return kind.model_validate_json(path.read_bytes())


class Messages:
    """The way to the service: standard output is for messages alone, what libraries print goes to the log."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, message: BaseModel) -> None:
        self._stream.write(f"{message.model_dump_json()}\n")
        self._stream.flush()
