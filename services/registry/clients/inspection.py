"""What transformers makes of a base model's files: asked in a process of its own, which imports torch."""

from datetime import timedelta
from pathlib import Path
from typing import Protocol

from services.registry.clients.child import answer_of
from services.registry.decide.base_models import BadBaseModel
from services.registry.model import Inspection


class Inspector(Protocol):
    async def __call__(self, directory: Path) -> Inspection:
        """Return what transformers makes of the files. Raises BadBaseModel."""


LIMIT = timedelta(minutes=5)
"""Imports of some seconds, a model of thousands of layers without its weights, and a few short conversations."""


async def inspect(directory: Path, *, limit: timedelta = LIMIT) -> Inspection:
    """Inspect the directory in a process of its own. Raises BadBaseModel where it takes too long; NoVerdict."""
    try:
        return await answer_of("services.registry.inspection", directory, Inspection, limit=limit)
    except TimeoutError:
        seconds = limit.total_seconds()
        raise BadBaseModel(f"building the model without its weights took more than {seconds:.0f} s") from None
