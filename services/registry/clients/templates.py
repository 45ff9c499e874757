"""A training template compared with the model's own, in a process of its own: templates are programs of strangers."""

from datetime import timedelta
from pathlib import Path

from schemas.layout import TRAINING_TEMPLATE
from services.registry.clients.child import answer_of
from services.registry.decide.base_models import BadBaseModel
from shared.chat.probes import Comparison

LIMIT = timedelta(minutes=2)


async def require_same_text(directory: Path, *, limit: timedelta = LIMIT) -> None:
    """Raise BadBaseModel where the two templates in `directory` make different texts; NoVerdict."""
    try:
        answer = await answer_of("shared.chat.probes", directory, Comparison, limit=limit)
    except TimeoutError:
        raise BadBaseModel(
            f"{TRAINING_TEMPLATE}: rendering a few short conversations took more than {limit.total_seconds():.0f} s"
        ) from None
    if answer.problem:
        raise BadBaseModel(f"{TRAINING_TEMPLATE}: {answer.problem}")
