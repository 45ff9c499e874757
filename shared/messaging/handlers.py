"""Whether a service has handlers for the topics that the contract says it listens to, and for no others."""

from collections.abc import Collection

from schemas.topics import LISTENS, OF_EVERY_TENANT, listens_to_tenants


class WrongHandlers(RuntimeError):
    """The handlers of this service are for other topics than `schemas/handled.py` says."""


def require_handlers(service: str, handled: Collection[str]) -> None:
    """Raise WrongHandlers if a topic of the service has no handler, or a handled topic is not the service's."""
    of_tenants = {OF_EVERY_TENANT} if listens_to_tenants(service) else set()
    declared = {topic.name for topic in LISTENS[service]} | of_tenants
    problems = [
        *(f"no handler for any type of {name}" for name in sorted(declared - {*handled})),
        *(f"no right to read {name}" for name in sorted({*handled} - declared)),
    ]
    if problems:
        remedy = "`make schemas` writes schemas/handled.py, `python -m deploy.bootstrap` gives the rights"
        raise WrongHandlers(f"{service}: {'; '.join(problems)}; {remedy}")
