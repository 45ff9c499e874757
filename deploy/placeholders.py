"""Settings with which a service is built and never started, for what is generated from it."""

from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import SecretStr

from shared.settings import ServiceSettings

PLACEHOLDERS: dict[Any, object] = {
    str: "placeholder",
    int: 1,
    SecretStr: SecretStr("placeholder of a secret, long enough"),
    Path: Path(),
}

Settings = TypeVar("Settings", bound=ServiceSettings)


def placeholder_settings(kind: type[Settings]) -> Settings:
    """Return settings of this kind without an environment: the defaults, and any value of the type for the rest."""
    required = {name: field for name, field in kind.model_fields.items() if field.is_required()}
    values: dict[str, Any] = {name: PLACEHOLDERS[field.annotation] for name, field in required.items()}
    return cast("Settings", kind.model_construct(None, **values))
