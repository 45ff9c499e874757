"""Whose recipe says what is measured at a step."""

from schemas.base import DatasetRef
from schemas.job import StagePlan
from schemas.specification import Method, Recipe
from services.gateway.model import JobCourse, SubmittedSpec
from tests.builders import a_sha

FIRST = SubmittedSpec(recipe=Recipe(method=Method.CPT).model_dump(mode="json"))


def a_plan(method: Method, num_steps: int) -> StagePlan:
    dataset = DatasetRef(version=a_sha("version"), manifest_sha256=a_sha("manifest"))
    return StagePlan(
        recipe=Recipe(method=method), dataset=dataset, config_hash=a_sha("config"), num_steps=num_steps
    )


def test_a_step_is_of_the_stage_that_makes_it():
    plans = (a_plan(Method.CPT, 10), a_plan(Method.SFT, 5), a_plan(Method.DPO, 5))
    course = JobCourse(num_steps=20, spec=FIRST, stage_plans=plans)
    methods = {step: course.recipe_at(step).method for step in (1, 10, 11, 15, 16, 20)}
    assert methods == {1: "cpt", 10: "cpt", 11: "sft", 15: "sft", 16: "dpo", 20: "dpo"}


def test_without_stages_every_step_is_of_the_recipe_that_was_asked_for():
    assert JobCourse(num_steps=20, spec=FIRST).recipe_at(7).method == "cpt"
