"""What a slot serves: each decision is a new generation, and none serves what did not pass the gate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.base import Message
from schemas.deployment import DeploymentFailed, DeploymentReady
from schemas.model import DeploymentApproved, DeploymentWithdrawn, Stage
from services.registry.model import Generation, Outcome, Slot, Version
from shared.errors import Refused


@dataclass(frozen=True)
class SlotDecision:
    slot: Slot
    events: tuple[Message, ...] = ()


def approve(slot: Slot, version: Version, *, job_id: str | None) -> SlotDecision:
    """Let the slot serve this version. `job_id`: the job that waits for it."""
    assert version.eval_id is not None, f"{version.model_id} has no evaluation"
    assert version.tenant == slot.tenant, f"slot {slot.name} is {slot.tenant}'s, not {version.tenant}'s"
    approved = slot.approve(version)
    fact = DeploymentApproved(
        slot=approved.name,
        tenant=approved.tenant,
        generation=approved.generation,
        model_id=version.model_id,
        job_id=job_id,
        kind=version.kind,
        digest=version.digest,
        base_model=version.base_model,
        base_sha=version.base_sha,
        eval_id=version.eval_id,
        rank=version.rank,
    )
    return SlotDecision(approved, (fact,))


def withdraw(slot: Slot, *, reason: str) -> SlotDecision:
    withdrawn = slot.withdraw()
    fact = DeploymentWithdrawn(
        slot=withdrawn.name, tenant=withdrawn.tenant, generation=withdrawn.generation, reason=reason
    )
    return SlotDecision(withdrawn, (fact,))


def deploy(slot: Slot, version: Version, *, base_models: Sequence[str]) -> SlotDecision:
    """Let the slot serve a version as a person asks. `version` is gated and current. Raises Refused."""
    if slot.name in base_models:
        raise Refused("slot_taken", f"slot {slot.name!r} is the name of a base model", param="slot")
    if slot.name != version.full_name:
        _require_alias(slot, version)
    return approve(slot, version, job_id=None)


def _require_alias(slot: Slot, version: Version) -> None:
    if slot.name.startswith("ft:"):
        raise Refused(
            "wrong_slot",
            f"slot {slot.name!r} is another version's full name; {version.model_id} may serve "
            f"{version.full_name!r} or an alias that does not begin with 'ft:'",
            param="slot",
        )
    if version.stage is not Stage.PRODUCTION:
        raise Refused(
            "not_production",
            f"slot {slot.name!r} is an alias, which needs a version in production; {version.model_id} is in "
            f"{version.stage}. Promote it first, or deploy it under its full name {version.full_name!r}",
            param="slot",
        )
    if not version.may_take_alias:
        raise Refused(
            "no_holdout",
            f"slot {slot.name!r} is an alias; {version.model_id} was gated without a holdout and approved without a "
            "word on that. Promote it again with accept_without_holdout and a reason",
            param="slot",
        )


def undeploy(slot: Slot) -> SlotDecision:
    """Withdraw what the slot serves. Raises Refused where it serves nothing."""
    if slot.desired is None:
        raise Refused("not_deployed", f"slot {slot.name!r} serves nothing", param="slot")
    return withdraw(slot, reason="asked for")


def roll_back(slot: Slot, servable: Mapping[str, Version]) -> SlotDecision:
    """Return to the digest that the slot served before. Raises Refused.

    `servable`: the versions of the slot's history that may be served now, by id.
    """
    current = slot.desired.digest if slot.desired else None
    earlier = [
        known for known in slot.generations if known.outcome is Outcome.READY and known.digest != current
    ]
    chosen = next((known for known in reversed(earlier) if _may_take(slot, known, servable)), None)
    if chosen is None:
        raise Refused("nothing_to_roll_back", _why_nothing(slot, earlier), param="slot")
    return approve(slot, servable[str(chosen.model_id)], job_id=None)


def on_ready(slot: Slot, ready: DeploymentReady) -> SlotDecision:
    return SlotDecision(slot.answered(ready.generation, Outcome.READY))


def on_failed(slot: Slot, failed: DeploymentFailed, servable: Mapping[str, Version]) -> SlotDecision:
    """Serve the last good digest again, or nothing. A failure of an older generation is only recorded."""
    answered = slot.answered(failed.generation, Outcome.FAILED)
    if failed.generation != slot.generation or slot.desired is None:
        return SlotDecision(answered)
    fallback = _last_good(answered, servable)
    if fallback is None:
        reason = f"generation {failed.generation} failed ({failed.code}): {failed.reason}"
        return withdraw(answered, reason=reason)
    return approve(answered, servable[str(fallback.model_id)], job_id=None)


def _last_good(slot: Slot, servable: Mapping[str, Version]) -> Generation | None:
    """Return the newest generation that was served and whose digest has not failed since."""
    failed_since: set[str | None] = set()
    for known in reversed(slot.generations):
        if known.outcome is Outcome.FAILED:
            failed_since.add(known.digest)
        served = known.outcome is Outcome.READY and known.digest not in failed_since
        if served and _may_take(slot, known, servable):
            return known
    return None


def _may_take(slot: Slot, earlier: Generation, servable: Mapping[str, Version]) -> bool:
    """Return whether the slot may serve it again: an alias needs a version that is in production still.

    One that failed since and passed again is in staging.
    """
    version = servable.get(str(earlier.model_id))
    return version is not None and (slot.name == version.full_name or version.may_take_alias)


def _why_nothing(slot: Slot, earlier: Sequence[Generation]) -> str:
    if not earlier:
        return f"slot {slot.name!r} has served no other version before; undeploy it to stop serving"
    names = ", ".join(sorted({str(known.model_id) for known in earlier}))
    why = "archived, stale, not in production any more, or without a newest evaluation that passed"
    return f"slot {slot.name!r} served {names} before, none of which may be served now ({why})"
