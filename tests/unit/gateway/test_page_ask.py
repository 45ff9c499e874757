"""Whom a question on the page of a model goes to, and what a person reads where nobody answers."""

from typing import Any

import pytest

from schemas.deployment import ReplicaAddress
from services.gateway.errors import ApiError, unavailable
from services.gateway.model import ModelVersion, Route
from services.gateway.page.ask import AWAY, Problem, Side, best_route, parts_of, problem_of, sides
from tests.builders import NOON

REPLICA = ReplicaAddress(replica_id="r", incarnation="1", url="http://127.0.0.1:1")
SERVED = {"replicas": (REPLICA,)}
VERSION = ModelVersion.model_validate({
    "model_id": "mv-1", "tenant": "demo", "full_name": "ft:tiny:demo:x:1", "digest": "d", "job_id": "ftjob-1",
    "base_model": "tiny", "base_sha": "b", "dataset_version": "v", "stage": "staging", "eval_id": None,
    "is_stale": False, "has_holdout": None, "approved_by": None, "approval_reason": "",
    "accepted_without_holdout": False, "detail": {}, "created_at": NOON,
})  # fmt: skip


def a_route(slot: str, state: str = "ready", **changes: Any) -> Route:
    bare = {
        "tenant": "demo", "slot": slot, "generation": 1, "model_id": "mv-1", "digest": "d", "state": state,
        "reason": "", "served_name": "s", "replicas": (), "updated_at": NOON,
    }  # fmt: skip
    return Route.model_validate(bare | changes)


def both(
    *routes: Route, namesake: Route | None = None, num_base: int = 1, num_version: int = 1, **changes: Any
):
    version = VERSION.model_copy(update=changes)
    return sides(version, routes, namesake=namesake, replicas={"base": num_base, "version": num_version})


def test_the_slot_that_is_asked_is_one_that_answers_soonest():
    routes = [
        a_route("a", "pending"),
        a_route("b", "stopped"),
        a_route("c"),
        a_route("d", "failed", **SERVED),
    ]
    assert best_route(routes).slot == "d", "what failed to load leaves the version before it in place"
    assert best_route(routes[:3]).slot == "c"
    assert best_route(routes[:2]).slot == "a"
    assert best_route(routes[1:2]) is None


@pytest.mark.parametrize(("state", "words"), [("pending", "being loaded"), ("ready", "not loaded now")])
def test_a_slot_without_a_replica_is_asked_and_waited_for(state, words):
    _, version = both(a_route("alias", state), num_version=0)
    assert (version.name, version.problem) == ("alias", None)
    assert words in version.note


def test_what_serves_and_has_no_ready_replica_is_away():
    _, version = both(a_route("alias", **SERVED), num_version=0)
    assert version.problem.command == "retune deployments list"
    base, version = both(a_route("alias", **SERVED), num_base=0)
    assert version.problem is None
    assert base.problem.command == "retune deployments list"
    base, _ = both(num_base=0)
    assert base.problem.command == "retune deployments deploy ft:tiny:demo:x:1"


def test_a_version_that_cannot_be_deployed_says_why():
    _, version = both(stage="dev")
    assert "cannot be: it is in dev" in version.problem.why
    assert version.problem.command == "retune models evaluation mv-1"
    _, failed = both(a_route("alias", "failed", reason="no room"))
    assert failed.problem.why == "it is not deployed: alias failed, no room"


def test_a_side_that_would_give_another_models_answer_is_not_asked():
    base, _ = both(namesake=a_route("tiny", **SERVED))
    assert base.problem.is_final
    assert base.problem.command == "retune deployments remove tiny"
    assert both(is_stale=True)[0].problem.is_final
    assert both(namesake=a_route("tiny", "stopped"))[0].problem is None


def test_an_error_becomes_what_a_person_can_do():
    side = Side("version", "This version", "alias")
    away = unavailable("it failed", code="model_unavailable")
    assert problem_of(away, side) == Problem(
        "it failed",
        "Ask again. If it stays so, look at what became of its deployment:",
        "retune deployments list",
    )
    known = Problem("no replica", "Wait.")
    assert problem_of(away, Side("base", "Base model", "tiny", known)) == known
    texts = problem_of(ApiError(400, "no template", code="no_chat_template"), side)
    assert '"$RETUNE_BASE_URL/completions"' in texts.command
    assert '"model": "alias"' in texts.command
    assert problem_of(ApiError(400, "too hot", code="invalid_value"), side).why == "too hot"
    assert '"$RETUNE_BASE_URL/chat/completions"' in side.curl


def test_what_follows_from_where_both_sides_stand_is_html_by_its_element():
    known = Problem("<b> is away", "Wait.", "retune deployments list")
    base, tuned = Side("base", "Base model", "tiny", known), Side("version", "This version", "alias")
    parts = parts_of((base, tuned))
    assert [*parts] == ["ask-away", "state-base", "curl-base", "state-version", "curl-version"]
    assert parts["ask-away"] == ""
    assert "&lt;b&gt; is away." in parts["state-base"]
    assert "retune deployments list" in parts["state-base"]
    assert "notice" not in parts["state-version"]
    assert "&#34;alias&#34;" in parts["curl-version"]
    assert parts_of((base, Side("version", "This version", "alias", known)))["ask-away"] == AWAY
