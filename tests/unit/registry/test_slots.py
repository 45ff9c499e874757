from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.deployment import DeploymentFailed, DeploymentReady
from schemas.evaluation import EvalInconclusive
from schemas.model import DeploymentApproved, DeploymentWithdrawn, ModelDemoted, PromoteModel, Stage
from services.registry.decide import slots, versions
from services.registry.model import Approval, Generation, Outcome, Slot, Verdict
from shared.errors import Refused
from shared.transitions import IllegalTransition
from tests.unit.registry.builders import BASE_SHA, OTHER_SHA, SAFE, a_version, failed, passed

ONE, TWO, THREE = (a_version(number, stage=Stage.PRODUCTION) for number in (1, 2, 3))
ALL = {version.model_id: version for version in (ONE, TWO, THREE)}


def a_slot(*history, name="support"):
    """`(version, outcome)` in order; a version of None is a withdrawal."""
    generations = tuple(
        Generation(
            number, version.model_id if version else None, version.digest if version else None, outcome
        )
        for number, (version, outcome) in enumerate(history, start=1)
    )
    return Slot("acme", name, generations)


def an_answer(message, slot, number, version, **changes):
    return message(
        pool="serve-bbbbbbbbbbbb",
        base_sha=version.base_sha,
        slot=slot.name,
        tenant=slot.tenant,
        digest=version.digest,
        generation=number,
        model_id=version.model_id,
        **changes,
    )


def not_served(slot, number, version):
    return an_answer(DeploymentFailed, slot, number, version, code="load", reason="no such file")


def served(slot, number, version):
    return an_answer(
        DeploymentReady,
        slot,
        number,
        version,
        served_name=f"{version.full_name}@{version.digest}",
        replicas=(),
    )


READY, PENDING, FAILED = Outcome.READY, Outcome.PENDING, Outcome.FAILED
GONE = (None, Outcome.WITHDRAWN)


class TestDeploy:
    def test_gives_a_staged_version_its_own_name(self):
        version = a_version(stage=Stage.STAGING)
        decision = slots.deploy(Slot("acme", version.full_name), version, base_models=["tiny"])
        assert isinstance(decision.events[0], DeploymentApproved)

    def test_gives_an_alias_to_production_only(self):
        with pytest.raises(Refused) as refused:
            slots.deploy(a_slot(), a_version(stage=Stage.STAGING), base_models=[])
        assert refused.value.code == "not_production"
        assert slots.deploy(a_slot(), ONE, base_models=[]).slot.generation == 1

    def test_gives_no_alias_to_what_was_gated_without_a_holdout_and_approved_before_that_was_asked(self):
        version = a_version(stage=Stage.PRODUCTION, verdict=Verdict("eval-1", "passed", (SAFE,)))
        with pytest.raises(Refused) as refused:
            slots.deploy(a_slot(), version, base_models=[])
        assert refused.value.code == "no_holdout"
        approved = replace(version, approval=Approval("ann", "for a reason", accepts_no_holdout=True))
        assert slots.deploy(a_slot(), approved, base_models=[]).slot.generation == 1

    def test_refuses_another_versions_full_name(self):
        with pytest.raises(Refused) as refused:
            slots.deploy(Slot("acme", TWO.full_name), ONE, base_models=[])
        assert refused.value.code == "wrong_slot"

    def test_refuses_the_name_of_a_base_model(self):
        with pytest.raises(Refused) as refused:
            slots.deploy(a_slot(name="tiny"), ONE, base_models=["tiny"])
        assert refused.value.code == "slot_taken"

    def test_is_a_new_generation_also_for_what_is_served_already(self):
        decision = slots.deploy(a_slot((ONE, READY)), ONE, base_models=[])
        assert decision.events[0].generation == 2


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([(ONE, READY), (TWO, READY)], ONE),
        ([(ONE, READY), (TWO, READY), (THREE, READY)], TWO),
        ([(ONE, READY), (TWO, PENDING)], ONE),
        ([(ONE, READY), (TWO, FAILED), (ONE, READY)], None),
        ([(ONE, READY), (TWO, READY), (ONE, READY)], TWO),
        ([(ONE, READY), (TWO, READY), (TWO, READY)], ONE),
        ([(ONE, READY), GONE], ONE),
        ([(ONE, READY)], None),
        ([(ONE, FAILED), (TWO, READY)], None),
        ([], None),
    ],
)
def test_roll_back_takes_what_the_slot_served_before(history, expected):
    slot = a_slot(*history)
    if expected is None:
        with pytest.raises(Refused, match="served no other version before"):
            slots.roll_back(slot, ALL)
    else:
        (approved,) = slots.roll_back(slot, ALL).events
        assert (approved.digest, approved.generation) == (expected.digest, len(history) + 1)


def test_an_alias_goes_back_to_production_alone():
    again = a_version(1, stage=Stage.STAGING)
    slot = a_slot((ONE, READY), (TWO, READY))
    with pytest.raises(Refused, match="not in production"):
        slots.roll_back(slot, {again.model_id: again})
    emptied = slots.on_failed(slot, not_served(slot, 2, TWO), {again.model_id: again})
    assert emptied.slot.desired is None


def test_roll_back_passes_over_what_may_not_be_served_now():
    slot = a_slot((ONE, READY), (TWO, READY), (THREE, READY))
    assert slots.roll_back(slot, {ONE.model_id: ONE}).events[0].digest == ONE.digest
    with pytest.raises(Refused, match=r"served mv-ftjob-1, mv-ftjob-2 before, .*archived, stale"):
        slots.roll_back(slot, {})


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([(ONE, READY), (TWO, PENDING)], ONE),
        ([(ONE, READY), (TWO, READY), (THREE, PENDING)], TWO),
        ([(ONE, PENDING)], None),
        ([(ONE, READY)], None),
        ([(ONE, READY), (TWO, READY), (TWO, FAILED), (ONE, FAILED), (TWO, PENDING)], None),
        ([(ONE, READY), (TWO, FAILED), (ONE, PENDING)], None),
    ],
)
def test_a_failure_brings_the_last_good_digest_back_or_nothing(history, expected):
    slot = a_slot(*history)
    last = history[-1][0]
    (fact,) = slots.on_failed(slot, not_served(slot, len(history), last), ALL).events
    assert fact.generation == len(history) + 1
    if expected is None:
        assert isinstance(fact, DeploymentWithdrawn)
        assert "no such file" in fact.reason
    else:
        assert fact.digest == expected.digest


def test_a_failure_of_an_older_generation_changes_nothing_that_is_served():
    slot = a_slot((ONE, PENDING), (TWO, PENDING))
    decision = slots.on_failed(slot, not_served(slot, 1, ONE), ALL)
    assert decision.events == ()
    assert [known.outcome for known in decision.slot.generations] == [FAILED, PENDING]


def test_a_failure_after_a_withdrawal_changes_nothing():
    slot = a_slot((ONE, PENDING), GONE)
    assert slots.on_failed(slot, not_served(slot, 1, ONE), ALL).events == ()


def test_readiness_is_remembered_also_when_it_comes_late():
    slot = a_slot((ONE, PENDING), (TWO, PENDING))
    assert slots.on_ready(slot, served(slot, 1, ONE)).slot.generations[0].outcome is READY


def test_a_withdrawn_generation_never_becomes_ready():
    slot = a_slot((ONE, READY), GONE)
    assert slots.on_ready(slot, served(slot, 2, ONE)).slot.desired is None


def test_undeploy_of_an_empty_slot_is_refused():
    with pytest.raises(Refused) as refused:
        slots.undeploy(a_slot((ONE, READY), GONE))
    assert refused.value.code == "not_deployed"
    assert slots.undeploy(a_slot((ONE, READY))).slot.desired is None


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": Stage.DEV},
        {"archived_at": object()},
        {"verdict": Verdict("eval-2", "failed", ())},
        {"verdict": Verdict("eval-2", "inconclusive", ())},
    ],
)
def test_no_slot_takes_what_is_not_gated(changes):
    version = a_version(**{"stage": Stage.STAGING} | changes)
    with pytest.raises(IllegalTransition):
        Slot("acme", "support").approve(version)


class World:
    """One slot and three versions, moved by whatever comes in whatever order."""

    def __init__(self):
        self.versions = {number: a_version(number, auto_deploy=False) for number in (1, 2, 3)}
        self.slot = Slot("acme", "support")
        self.current_sha = BASE_SHA
        self.facts = []

    def step(self, action, number):
        try:
            getattr(self, action)(number)
        except Refused:
            return

    def apply(self, decision):
        self.slot = decision.slot
        self.facts.extend(decision.events)

    def passes(self, number):
        version = self.versions[number]
        own = Slot("acme", version.full_name)
        decision = versions.on_eval_passed(version, own, passed(version), current_sha=self.current_sha)
        self.versions[number] = decision.version

    def fails(self, number):
        version = self.versions[number]
        decision = versions.on_eval_failed(version, self.serving(version), failed(version))
        self.judged(number, decision)

    def cannot_tell(self, number):
        version = self.versions[number]
        event = EvalInconclusive(**failed(version).model_dump())
        self.judged(number, versions.on_eval_inconclusive(version, event))

    def serving(self, version):
        is_serving = self.slot.desired and self.slot.desired.model_id == version.model_id
        return [self.slot] if is_serving else []

    def judged(self, number, decision):
        self.versions[number] = decision.version
        for slot in decision.slots:
            self.slot = slot
        self.facts += [fact for fact in decision.events if not isinstance(fact, ModelDemoted)]

    def promotes(self, number):
        version = self.versions[number]
        command = PromoteModel(model_id=version.model_id, tenant=version.tenant, approved_by="ann")
        decision = versions.promote(version, command, current_sha=self.current_sha)
        self.versions[number] = decision.version

    def deploys(self, number):
        version = self.versions[number]
        versions.require_gated(version)
        versions.require_current(version, self.current_sha)
        self.apply(slots.deploy(self.slot, version, base_models=["tiny"]))

    def rolls_back(self, _):
        self.apply(slots.roll_back(self.slot, self.servable()))

    def undeploys(self, _):
        self.apply(slots.undeploy(self.slot))

    def answers_ready(self, number):
        if known := self.generation(number):
            self.apply(slots.on_ready(self.slot, served(self.slot, known.number, self.by_id(known.model_id))))

    def answers_failed(self, number):
        if known := self.generation(number):
            failure = not_served(self.slot, known.number, self.by_id(known.model_id))
            self.apply(slots.on_failed(self.slot, failure, self.servable()))

    def base_changes(self, number):
        self.current_sha = BASE_SHA if number == 1 else OTHER_SHA
        if self.current_sha == OTHER_SHA and self.slot.desired:
            self.apply(slots.withdraw(self.slot, reason="base changed"))

    def generation(self, back):
        """The generation so many from the end, if it served anything."""
        if len(self.slot.generations) < back or self.slot.generations[-back].model_id is None:
            return None
        return self.slot.generations[-back]

    def by_id(self, model_id):
        return next(version for version in self.versions.values() if version.model_id == model_id)

    def servable(self):
        return {
            version.model_id: version
            for version in self.versions.values()
            if version.may_be_served and version.base_sha == self.current_sha
        }


ACTIONS = (
    "passes", "fails", "cannot_tell", "promotes", "deploys", "rolls_back", "undeploys", "answers_ready", "answers_failed",
    "base_changes",
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 3)), max_size=40))
def test_promote_and_roll_back_in_any_order_serve_only_what_passed(steps):
    world = World()
    for action, number in steps:
        before = len(world.facts)
        world.step(action, number)
        for fact in world.facts[before:]:
            if isinstance(fact, DeploymentApproved):
                version = world.by_id(fact.model_id)
                assert (version.stage, version.verdict.outcome) == (Stage.PRODUCTION, "passed")
                assert (fact.base_sha, fact.eval_id) == (world.current_sha, version.eval_id)
        if world.slot.desired:
            assert world.by_id(world.slot.desired.model_id).stage is Stage.PRODUCTION
    generations = [fact.generation for fact in world.facts]
    assert generations == list(range(1, len(generations) + 1))
    desired = world.slot.desired
    last = world.facts[-1] if world.facts else None
    assert (desired.digest if desired else None) == getattr(last, "digest", None)
