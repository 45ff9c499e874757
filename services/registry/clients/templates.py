"""A training template held against the model's own, in a process of its own: templates are programs of strangers."""

from pathlib import Path

from schemas.layout import TRAINING_TEMPLATE
from services.registry.clients.child import answer_of
from services.registry.decide.base_models import BadBaseModel

LIMIT_SECONDS = 120.0


async def require_same_text(directory: Path, *, seconds: float = LIMIT_SECONDS) -> None:
    """Raises BadBaseModel where the two templates in `directory` make different texts; NoVerdict."""
    try:
        answer = await answer_of("shared.chat.probes", directory, seconds=seconds)
    except TimeoutError:
        raise BadBaseModel(
            f"{TRAINING_TEMPLATE}: rendering a few short conversations took more than {seconds:.0f} s"
        ) from None
    if problem := answer["problem"]:
        raise BadBaseModel(f"{TRAINING_TEMPLATE}: {problem}")
