"""The lineage of a version as a picture: every box and line, in its place, without another on it."""

import re
from itertools import combinations, pairwise
from typing import Any

from schemas.base import StartFrom
from schemas.lifecycle import JobState
from services.gateway.model import ModelVersion, Route
from services.gateway.page.lineage import BOX_HEIGHT, NAME_CHARACTERS, Lineage, Node, drawn
from tests.builders import NOON, a_bundle, a_sha
from tests.unit.gateway.test_page_views import a_job

NAME = "ft:tiny-llama:demo:a-long-suffix-of-it:0123abcd"


def a_version(**changes: Any) -> ModelVersion:
    fields = {
        "model_id": "mv-1",
        "tenant": "demo",
        "full_name": NAME,
        "digest": a_sha("model"),
        "job_id": "ftjob-1",
        "base_model": "tiny-llama",
        "base_sha": a_sha("base"),
        "dataset_version": a_sha("dataset"),
        "stage": "production",
        "eval_id": None,
        "is_stale": False,
        "has_holdout": None,
        "approved_by": None,
        "approval_reason": "",
        "accepted_without_holdout": False,
        "detail": {},
        "created_at": NOON,
    }
    return ModelVersion.model_validate(fields | changes)


def a_route(slot: str, state: str = "ready") -> Route:
    return Route(
        tenant="demo",
        slot=slot,
        generation=1,
        model_id="mv-1",
        digest=a_sha("model"),
        state=state,
        reason="",
        served_name=slot,
        replicas=(),
        updated_at=NOON,
    )


def words_of(node: Node) -> tuple[str, str, str, str]:
    return node.kind, node.name, node.state, node.link


def ends_of(lineage: Lineage) -> set[tuple[str, str]]:
    """Names of the boxes that each line joins, by where it begins and ends."""
    right = {(node.x + node.width, node.y + node.height // 2): node.name for node in lineage.nodes}
    left = {(node.x, node.y + node.height // 2): node.name for node in lineage.nodes}
    numbers = [[int(number) for number in re.findall(r"\d+", line)] for line in lineage.lines]
    return {(right[each[0], each[1]], left[each[-2], each[-1]]) for each in numbers}


def test_a_version_alone_has_what_its_row_names():
    lineage = drawn(a_version(), None, [], [], at_most=6)
    assert [words_of(node) for node in lineage.nodes] == [
        ("base model", "tiny-llama", "", "/models"),
        ("dataset version", a_sha("dataset")[:16], "", ""),
        ("job", "ftjob-1", "", ""),
        ("this version", NAME, "production", ""),
    ]
    assert len(lineage.lines) == 3
    assert lineage.width == max(node.x + node.width for node in lineage.nodes)


def test_all_that_is_known_is_joined_one_step_each_way():
    start = StartFrom(name="ft:tiny-llama:demo::older", job_id="ftjob-0", bundle=a_bundle())
    job = a_job(JobState.SUCCEEDED, dataset_id="ds-1", fine_tuned_model=NAME)
    child = a_job(job_id="ftjob-2")
    routes = [a_route("prod"), a_route("canary", "failed")]
    lineage = drawn(a_version(detail={"started_from": start}), job, routes, [child], at_most=6)
    assert [words_of(node) for node in lineage.nodes if node.kind not in ("base model", "this version")] == [
        ("dataset version", a_sha("dataset")[:16], "", "/datasets/ds-1"),
        ("started from", start.name, "", "/jobs/ftjob-0"),
        ("job", NAME, "succeeded", "/jobs/ftjob-1"),
        ("served as", "prod", "ready", "/deployments"),
        ("served as", "canary", "failed", "/deployments"),
        ("started from it", "ftjob-2", "training", "/jobs/ftjob-2"),
    ]
    named_apart = lineage.nodes[3].name
    assert named_apart == NAME, "the job has the name of what it trained"
    assert len(ends_of(lineage)) == len(lineage.lines) == 3 + 1 + 3
    assert (NAME, "ftjob-2") in ends_of(lineage)


def test_no_box_lies_on_another_or_outside():
    children = [a_job(job_id=f"ftjob-{number}") for number in range(9)]
    lineage = drawn(a_version(), None, [a_route("prod")], children, at_most=6)
    for one, other in combinations(lineage.nodes, 2):
        assert abs(one.x - other.x) >= one.width or abs(one.y - other.y) >= one.height
    for node in lineage.nodes:
        assert 0 <= node.x <= lineage.width - node.width
        assert 0 <= node.y <= lineage.height - node.height


def test_of_many_children_the_newest_are_shown_and_the_rest_counted():
    children = [a_job(job_id=f"ftjob-{number}") for number in range(7)]
    lineage = drawn(a_version(), None, [], children, at_most=6)
    shown = [node for node in lineage.nodes if node.kind == "started from it"]
    assert [node.name for node in shown] == [f"ftjob-{number}" for number in range(6)]
    assert all(other.y - one.y > BOX_HEIGHT for one, other in pairwise(shown))
    assert lineage.num_left_out == 1
    assert drawn(a_version(), None, [], children[:6], at_most=6).num_left_out == 0


def test_a_long_name_is_cut_in_its_middle():
    shown = Node("this version", NAME).shown_name
    assert len(shown) == NAME_CHARACTERS
    assert shown.startswith("ft:tiny-lla")
    assert shown.endswith(":0123abcd")
    assert Node("slot", "x" * NAME_CHARACTERS).shown_name == "x" * NAME_CHARACTERS
