"""Which trials begin, which end early, what ends the sweep and which trial is best."""

from collections import Counter
from decimal import Decimal
from math import log10

import pytest

from schemas.base import CommandRefused, FailureClass
from schemas.job import CancelJob, JobFailed, SubmitJob
from schemas.sweep import (
    Choices,
    PruningRule,
    PruningSpec,
    Range,
    SubmitSweep,
    SweepEnded,
    SweepState,
    TrialEnded,
    TrialState,
    TrialSubmitted,
    check_sweep,
    with_parameters,
)
from services.tracker.decide import search, sweeps
from services.tracker.decide.pruning import bracket_of, rungs, why_pruned
from services.tracker.decide.trial import Trial, job_id_of
from shared.errors import Refused
from tests.builders import NOON, TENANT, a_file_ref, a_job_spec
from tests.unit.tracker.sweep_world import (
    RANKS,
    RATES,
    SWEEP_ID,
    World,
    a_sweep_spec,
    cancelled,
    evaluating,
    queued,
    succeeded,
    written,
)

GRID = {"learning_rate": Choices(choices=(1e-4, 3e-4, 1e-3)), "lora.rank": Choices(choices=(4, 8))}
HALVING = PruningSpec(rule=PruningRule.SUCCESSIVE_HALVING, after=0.1, reduction_factor=3)


def a_trial(number: int, *losses: float, state: TrialState = TrialState.COMPLETED) -> Trial:
    """Losses are those at 10 %, 20 % … of the run."""
    measured = tuple((10 * (place + 1), loss) for place, loss in enumerate(losses))
    return Trial("s", number, f"ftjob-{number}", {}, str(number), state, num_steps=100, losses=measured)


class TestSearch:
    def test_a_grid_is_every_combination_in_order(self):
        spec = a_sweep_spec(algorithm="grid", parameters=GRID, num_trials=100)
        assert spec.most_trials == 6
        tried = [tuple(search.choose(spec, number, []).values()) for number in range(6)]
        assert tried == [(1e-4, 4), (1e-4, 8), (3e-4, 4), (3e-4, 8), (1e-3, 4), (1e-3, 8)]

    @pytest.mark.parametrize("algorithm", ["grid", "random", "tpe"])
    def test_the_order_in_which_parameters_came_means_nothing(self, algorithm):
        """Postgres keeps the keys of JSON in an order of its own."""
        turned = dict(reversed(GRID.items()))
        history = World(a_sweep_spec(parameters=GRID, num_trials=14)).run(seed=0).trials
        specs = [a_sweep_spec(algorithm=algorithm, parameters=each) for each in (GRID, turned)]
        assert search.choose(specs[0], 5, history) == search.choose(specs[1], 5, history)

    def test_a_range_with_a_step_is_a_grid_of_whole_numbers(self):
        assert Range(low=8, high=20, step=4).grid == (8, 12, 16, 20)

    def test_random_values_follow_from_seed_and_number(self):
        spec = a_sweep_spec()
        values = [search.choose(spec, number, []) for number in range(200)]
        assert values == [search.choose(spec, number, []) for number in range(200)]
        assert values != [search.choose(a_sweep_spec(seed=1), number, []) for number in range(200)]
        rates = [float(each["learning_rate"]) for each in values]
        assert all(1e-5 <= rate <= 1e-2 for rate in rates)
        assert 80 <= sum(log10(rate) < -3.5 for rate in rates) <= 120

    @pytest.mark.parametrize(
        ("parameter", "kind"), [(Range(low=1, high=9), int), (Range(low=1, high=64, log=True), int)]
    )
    def test_whole_bounds_give_whole_numbers(self, parameter, kind):
        spec = a_sweep_spec(parameters={"num_epochs": parameter})
        assert {type(search.choose(spec, number, [])["num_epochs"]) for number in range(30)} == {kind}

    @pytest.mark.parametrize(
        ("parameter", "least", "most"), [(Range(low=2, high=4), 2, 4), (Range(low=0.5, high=0.75), 0.5, 0.75)]
    )
    def test_values_are_drawn_evenly_from_all_of_a_range(self, parameter, least, most):
        spec = a_sweep_spec(parameters={"warmup_ratio": parameter})
        values = [search.choose(spec, number, [])["warmup_ratio"] for number in range(300)]
        assert min(values) == pytest.approx(least, abs=0.01)
        assert max(values) == pytest.approx(most, abs=0.01)
        assert sum(values) / len(values) == pytest.approx((least + most) / 2, rel=0.05)

    @pytest.mark.parametrize("parameter", [Range(low=1, high=9), Range(low=0.0, high=0.5, step=0.25), RATES])
    def test_an_estimate_has_the_types_that_were_asked_for(self, parameter):
        spec = a_sweep_spec(algorithm="tpe", parameters={"warmup_ratio": parameter})
        value = search.choose(spec, 3, [])["warmup_ratio"]
        assert isinstance(value, int if parameter.low == 1 else float)
        assert parameter.low <= value <= parameter.high


class TestTrials:
    def test_so_many_run_at_once_as_asked(self):
        world = World(a_sweep_spec(concurrency=3))
        assert [each.job_id for each in world.of(SubmitJob)] == [job_id_of(SWEEP_ID, n) for n in range(3)]
        job = world.of(SubmitJob)[1]
        world.hear(queued(job.job_id), written(job.job_id, 100, 1.5), evaluating(job))
        assert len(world.trials) == 3, "its job has not ended"
        world.hear(succeeded(job.job_id))
        assert [each.number for each in world.trials] == [0, 1, 2, 3]

    def test_a_trial_is_the_job_with_its_values_and_in_its_sweep(self):
        world = World(a_sweep_spec(algorithm="grid", parameters=GRID))
        second = world.of(SubmitJob)[1]
        assert (second.tenant, second.dataset_id) == (TENANT, "ds-1")
        assert (second.spec.recipe.learning_rate, second.spec.recipe.lora.rank) == (1e-4, 8)
        assert (second.spec.trial.sweep_id, second.spec.trial.number) == (SWEEP_ID, 1)

    def test_what_estimates_waits_for_all_but_the_newest(self):
        world = World(a_sweep_spec(algorithm="tpe", concurrency=2))
        last = world.of(SubmitJob)[1]
        world.hear(
            queued(last.job_id), written(last.job_id, 100, 1.5), evaluating(last), succeeded(last.job_id)
        )
        assert len(world.trials) == 2, "trial 2 learns from trial 0"
        first = world.of(SubmitJob)[0]
        world.hear(
            queued(first.job_id), evaluating(first), succeeded(first.job_id), written(first.job_id, 100, 1.2)
        )
        assert len(world.trials) == 4

    def test_an_equal_configuration_is_not_run_again(self):
        spec = a_sweep_spec(parameters={"lora.rank": RANKS}, num_trials=12)
        world = World(spec).run(seed=1)
        ranks = [each.spec.recipe.lora.rank for each in world.of(SubmitJob)]
        assert sorted(ranks) == [4, 8, 16]
        twins = [each for each in world.trials if each.state is TrialState.DUPLICATE]
        assert len(twins) == 9
        for twin in twins:
            assert world.trials[twin.duplicate_of].parameters == twin.parameters
        assert world.of(SweepEnded)[0].num_trials == 12

    def test_the_best_checkpoint_is_what_counts_where_it_is_kept(self):
        world = World(a_sweep_spec(num_trials=1))
        job = world.of(SubmitJob)[0]
        world.hear(evaluating(job, best=0.7), written(job.job_id, 100, 1.5), succeeded(job.job_id))
        assert world.of(SweepEnded)[0].best_valid_loss == 0.7

    def test_a_last_bundle_without_a_loss_fails_the_trial(self):
        world = World(a_sweep_spec(num_trials=1))
        job = world.of(SubmitJob)[0]
        world.hear(evaluating(job), succeeded(job.job_id), written(job.job_id, 100, None))
        ended = world.of(SweepEnded)[0]
        assert (ended.state, ended.best) == (SweepState.FAILED, None)

    def test_news_that_come_again_change_nothing(self):
        world = World(a_sweep_spec(num_trials=2))
        job = world.of(SubmitJob)[0]
        news = queued(job.job_id), written(job.job_id, 100, 1.5), evaluating(job), succeeded(job.job_id)
        world.hear(*news)
        before = world.trials, list(world.messages)
        world.hear(*news, *reversed(news))
        assert (world.trials, world.messages) == before


class TestEnd:
    def test_the_best_one_is_the_lowest_of_those_trained_to_their_end(self):
        world = World(a_sweep_spec(algorithm="grid", parameters=GRID, num_trials=6)).run(seed=3)
        ended = world.of(SweepEnded)[0]
        assert (ended.state, ended.best) == (SweepState.SUCCEEDED, 3)
        assert world.trials[3].parameters == {"learning_rate": 3e-4, "lora.rank": 8}

    def test_a_cancelled_sweep_ends_what_runs_and_begins_nothing(self):
        world = World(a_sweep_spec())
        world.take(sweeps.cancel(world.sweep, SWEEP_ID, TENANT, world.trials))
        running = [each.job_id for each in world.of(SubmitJob)]
        assert [each.job_id for each in world.of(CancelJob)] == running
        assert world.sweep.state is SweepState.STOPPING
        world.take(sweeps.cancel(world.sweep, SWEEP_ID, TENANT, world.trials))
        assert [each.job_id for each in world.of(CancelJob)] == running
        world.hear(*(cancelled(job_id, "user") for job_id in running))
        assert world.of(SweepEnded)[0].state is SweepState.CANCELLED
        assert {each.state for each in world.trials} == {TrialState.CANCELLED}
        with pytest.raises(Refused, match="cancelled already"):
            sweeps.cancel(world.sweep, SWEEP_ID, TENANT, world.trials)

    def test_another_tenants_sweep_is_not_known(self):
        world = World(a_sweep_spec())
        with pytest.raises(Refused, match="not known to tenant other"):
            sweeps.cancel(world.sweep, SWEEP_ID, "other", world.trials)

    def test_the_budget_is_one_for_all(self):
        world = World(a_sweep_spec(max_cost=Decimal("2.00")))
        done, running = world.of(SubmitJob)
        world.hear(written(done.job_id, 100, 1.5), evaluating(done))
        world.spent = Decimal("2.00")
        world.hear(succeeded(done.job_id))
        assert [(each.job_id, each.reason) for each in world.of(CancelJob)] == [(running.job_id, "budget")]
        assert len(world.trials) == 2
        world.hear(cancelled(running.job_id, "budget"))
        ended = world.of(SweepEnded)[0]
        assert (ended.state, ended.best, ended.cost) == (SweepState.SUCCEEDED, 0, Decimal("2.00"))
        assert "budget of 2.00 US dollars is spent" in ended.message

    def test_many_failures_end_it(self):
        world = World(a_sweep_spec(max_failed_trials=2, concurrency=1))
        for number in range(2):
            job_id = job_id_of(SWEEP_ID, number)
            refused = CommandRefused(
                subject_id=job_id, command="SubmitJob", command_id="c", code="stale_base", message="stale"
            )
            failed = JobFailed(
                job_id=job_id, tenant=TENANT, failure_class=FailureClass.OOM, code="oom", message="too large"
            )
            world.hear(refused if number else failed)
        assert [each.message for each in world.of(TrialEnded)] == ["too large", "stale"]
        assert world.of(SweepEnded)[0].state is SweepState.FAILED
        assert len(world.trials) == 2

    @pytest.mark.parametrize(("command", "code"), [("SubmitJob", "job_exists"), ("CancelJob", "too_late")])
    def test_a_command_that_came_too_late_or_twice_fails_no_trial(self, command, code):
        world = World(a_sweep_spec())
        job_id = job_id_of(SWEEP_ID, 0)
        world.hear(
            CommandRefused(subject_id=job_id, command=command, command_id="c", code=code, message="no")
        )
        assert world.trials[0].state is TrialState.RUNNING
        assert world.trials[0].is_open


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"parameters": {"method": Choices(choices=("lora", "sft"))}}, "unknown_parameter"),
            ({"parameters": {"lora.rank": Choices(choices=(8, 1024))}}, "invalid_parameter"),
            ({"parameters": {"optimizer": Choices(choices=("adamw", "sgd"))}}, "invalid_parameter"),
            ({"parameters": {"schedule": Choices(choices=("cosine", "wsd"))}}, None),
            ({"job": a_job_spec()}, "no_validation_file"),
            ({"algorithm": "grid"}, "endless_grid"),
            ({"parameters": {"decay_ratio": Choices(choices=(0.1, 0.2))}}, "decay_ignored"),
            ({}, None),
        ],
    )
    def test_what_no_trial_could_run_is_refused_at_submit(self, changes, code):
        refusal = check_sweep(a_sweep_spec(**changes))
        assert (refusal and refusal.code) == code

    def test_the_parameter_whose_value_is_refused_is_named(self):
        others = {"learning_rate": Range(low=1e-5, high=1e-3), "lora.rank": Choices(choices=(0, 8))}
        refusal = check_sweep(a_sweep_spec(parameters=others))
        assert refusal is not None
        assert refusal.param == "parameters.lora.rank"
        assert refusal.message.startswith("parameters.lora.rank: 0 is none that recipe.lora.rank takes: ")

    @pytest.mark.parametrize(
        "fields",
        [
            {"low": 2.0, "high": 1.0},
            {"low": 0.0, "high": 1.0, "log": True},
            {"low": 1, "high": 3, "step": 0},
            {"low": 1.0, "high": 2.0, "step": 0.5, "log": True},
        ],
    )
    def test_a_range_is_one(self, fields):
        with pytest.raises(ValueError, match="found"):
            Range(**fields)

    def test_auto_is_no_choice(self):
        with pytest.raises(ValueError, match="auto"):
            Choices(choices=("auto", 1e-4))

    def test_ids_are_checked_and_new(self):
        command = SubmitSweep(sweep_id="A b", tenant=TENANT, dataset_id="ds-1", spec=a_sweep_spec())
        with pytest.raises(Refused, match="sweep_id"):
            sweeps.submit(command, None, now=NOON)
        again = command.model_copy(update={"sweep_id": SWEEP_ID})
        with pytest.raises(Refused, match="exists already"):
            sweeps.submit(again, World(a_sweep_spec()).sweep, now=NOON)

    def test_values_reach_parts_of_a_recipe_that_were_left_out(self):
        spec = a_job_spec(validation_file=a_file_ref("v"))
        changed = with_parameters(spec, {"dpo.beta": 0.3, "lora.rank": 4})
        assert (changed.recipe.dpo.beta, changed.recipe.lora.rank) == (0.3, 4)
        assert changed.recipe.model_copy(update={"dpo": None, "lora": spec.recipe.lora}) == spec.recipe


class TestPruning:
    median = PruningSpec(after=0.2, min_trials=3)

    def why(self, rule: PruningSpec | None, trial: Trial, *history: Trial) -> str | None:
        return why_pruned(a_sweep_spec(pruning=rule), trial, history)

    def test_worse_than_the_median_ends(self):
        others = [a_trial(number, 3.0, 2.0 + number / 10, 1.0) for number in range(3)]
        assert self.why(self.median, a_trial(9, 3.0, 2.2, state=TrialState.RUNNING), *others)
        assert self.why(self.median, a_trial(9, 3.0, 2.1, state=TrialState.RUNNING), *others) is None

    def test_before_that_part_and_with_too_few_others_nobody_ends(self):
        others = [a_trial(number, 1.0, 1.0) for number in range(3)]
        assert self.why(self.median, a_trial(9, 9.0, state=TrialState.RUNNING), *others) is None
        slow = a_trial(9, 9.0, 9.0, state=TrialState.RUNNING)
        assert self.why(self.median, slow, *others[:2]) is None
        assert self.why(self.median, slow, *others)

    def test_those_that_ended_earlier_are_no_measure_of_what_came_later(self):
        pruned = [a_trial(number, 9.0, state=TrialState.PRUNED) for number in range(3)]
        assert self.why(self.median, a_trial(9, 5.0, 4.0, state=TrialState.RUNNING), *pruned) is None

    def test_without_a_rule_nobody_ends(self):
        others = [a_trial(number, 1.0, 1.0) for number in range(9)]
        assert self.why(None, a_trial(9, 9.0, 9.0, state=TrialState.RUNNING), *others) is None

    def test_rungs_are_so_many_times_farther(self):
        assert rungs(HALVING) == pytest.approx((0.1, 0.3, 0.9))

    @pytest.mark.parametrize(
        ("after", "factor", "parts"), [(0.25, 2, (0.25, 0.5)), (0.3333333333, 3, (0.3333333333,))]
    )
    def test_the_end_of_a_run_is_no_rung(self, after, factor, parts):
        assert rungs(PruningSpec(after=after, reduction_factor=factor)) == parts

    def test_a_rung_before_the_first_bundle_is_passed_over(self):
        late = Trial("s", 9, "ftjob-9", {}, "9", num_steps=100, losses=((30, 9.0),))
        others = [a_trial(number, 1.0, 1.0, 1.0) for number in range(5)]
        assert late.lowest_until(0.1) is None
        assert "at 30%" in self.why(HALVING, late, *others)

    def test_so_many_trials_begin_in_each_bracket_as_cost_alike(self):
        """Of each 17 nine in the first, five in the second, three in the last, as by 3 * 3^2 / 3, 3 * 3 / 2, 3 * 1 / 1."""
        begun = Counter(bracket_of(0, HALVING, number) for number in range(17_000))
        assert [begun[each] / 1000 for each in range(3)] == pytest.approx([9, 5, 3], abs=0.1)

    def test_of_each_rung_a_share_continues(self):
        others = [a_trial(number, 1.0 + number) for number in range(5)]
        assert self.why(HALVING, a_trial(9, 1.5, state=TrialState.RUNNING), *others) is None
        assert self.why(HALVING, a_trial(9, 2.5, state=TrialState.RUNNING), *others)
        assert self.why(HALVING, a_trial(9, 9.0, state=TrialState.RUNNING)) is None, "it is alone"

    def test_a_later_rung_is_asked_too(self):
        others = [a_trial(number, 2.0, 1.0, 0.5) for number in range(5)]
        assert self.why(HALVING, a_trial(9, 1.0, 1.0, state=TrialState.RUNNING), *others) is None
        assert self.why(HALVING, a_trial(9, 1.0, 1.0, 0.9, state=TrialState.RUNNING), *others)

    def test_brackets_compare_their_own_trials_from_their_own_rung_on(self):
        rule = HALVING.model_copy(update={"rule": PruningRule.HYPERBAND})
        brackets = {number: bracket_of(0, rule, number) for number in range(200)}
        assert [list(brackets.values()).count(each) for each in range(3)] == sorted(
            [list(brackets.values()).count(each) for each in range(3)], reverse=True
        )
        spared = next(number for number, each in brackets.items() if each == 1)
        others = [a_trial(number, 1.0, 1.0, 1.0) for number in range(200) if number != spared]
        assert self.why(rule, a_trial(spared, 9.0, 9.0, state=TrialState.RUNNING), *others) is None
        assert self.why(rule, a_trial(spared, 9.0, 9.0, 9.0, state=TrialState.RUNNING), *others)
        rivals = [each for each in others if brackets[each.number] != 1]
        assert self.why(rule, a_trial(spared, 9.0, 9.0, 9.0, state=TrialState.RUNNING), *rivals) is None

    def test_a_pruned_trial_stays_so_although_its_job_completes(self):
        spec = a_sweep_spec(pruning=PruningSpec(after=0.01, min_trials=1), concurrency=1, num_trials=2)
        world = World(spec)
        first = world.of(SubmitJob)[0]
        world.hear(queued(first.job_id), written(first.job_id, 10, 1.0), written(first.job_id, 100, 0.5))
        world.hear(evaluating(first), succeeded(first.job_id))
        second = world.of(SubmitJob)[1]
        world.hear(queued(second.job_id), written(second.job_id, 10, 2.0), written(second.job_id, 100, 0.1))
        assert [(each.job_id, each.reason) for each in world.of(CancelJob)] == [(second.job_id, "prune")]
        world.hear(evaluating(second), succeeded(second.job_id))
        assert (world.trials[1].state, world.trials[1].valid_loss) == (TrialState.PRUNED, 2.0)
        assert world.of(SweepEnded)[0].best == 0

    def test_what_was_pruned_before_its_length_was_known_waits_for_it(self):
        spec = a_sweep_spec(pruning=PruningSpec(after=0.01, min_trials=1), concurrency=1, num_trials=2)
        world = World(spec)
        first = world.of(SubmitJob)[0]
        world.hear(
            queued(first.job_id),
            written(first.job_id, 50, 0.5),
            written(first.job_id, 100, 0.5),
            evaluating(first),
        )
        world.hear(succeeded(first.job_id))
        second = world.of(SubmitJob)[1]
        world.hear(written(second.job_id, 50, 2.0), written(second.job_id, 60, 1.5))
        assert world.trials[1].state is TrialState.RUNNING
        world.hear(queued(second.job_id))
        assert (world.trials[1].state, world.trials[1].valid_loss) == (TrialState.PRUNED, 2.0)

    def test_what_is_trained_to_its_end_is_not_pruned(self):
        spec = a_sweep_spec(pruning=PruningSpec(after=0.01, min_trials=1), concurrency=1, num_trials=2)
        world = World(spec)
        first = world.of(SubmitJob)[0]
        world.hear(queued(first.job_id), written(first.job_id, 100, 0.5), evaluating(first))
        world.hear(succeeded(first.job_id))
        second = world.of(SubmitJob)[1]
        world.hear(queued(second.job_id), written(second.job_id, 100, 2.0), evaluating(second))
        assert world.trials[1].state is TrialState.COMPLETED


PRUNINGS = [None, *(PruningSpec(rule=rule, min_trials=3) for rule in PruningRule)]


@pytest.mark.parametrize("pruning", PRUNINGS, ids=lambda each: each.rule if each else "none")
@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_forty_trials_are_the_same_whatever_is_taken_away(algorithm, pruning):
    """Each with its values, its end and its loss: without a preemption, and with nodes taken away all the time and news
    that are read late, of each topic at another time.
    """
    spec = a_sweep_spec(algorithm=algorithm, pruning=pruning, num_trials=40, concurrency=4)
    calm = World(spec).run(seed=0)
    struck = World(spec).run(seed=1, preemptions=0.4, lag=0.8)
    assert calm.is_successful
    assert struck.results == calm.results
    assert struck.of(SweepEnded)[0].best_valid_loss == calm.of(SweepEnded)[0].best_valid_loss
    assert sum(training.attempt - 1 for training in struck.trainings.values()) > 40
    assert len(calm.of(TrialSubmitted)) == len(calm.of(TrialEnded)) == 40
    if pruning is not None:
        assert 5 < sum(each.state is TrialState.PRUNED for each in calm.trials) < 40


def test_an_estimate_comes_closer_than_chance():
    best = {
        algorithm: [
            World(a_sweep_spec(algorithm=algorithm, num_trials=30, seed=seed))
            .run(seed=seed)
            .of(SweepEnded)[0]
            for seed in range(4)
        ]
        for algorithm in ("random", "tpe")
    }
    mean = {name: sum(each.best_valid_loss for each in ends) / 4 for name, ends in best.items()}
    assert mean["tpe"] < mean["random"]
