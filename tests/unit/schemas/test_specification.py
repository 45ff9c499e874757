from typing import ClassVar

import pytest
from pydantic import ValidationError

from schemas import resolution
from schemas.base import BundleRef, StartFrom
from schemas.gate import GateSpec
from schemas.identity import config_hash
from schemas.specification import (
    DpoSpec,
    EarlyStoppingSpec,
    LoraSpec,
    Method,
    Recipe,
    canonical_sha256,
)
from tests.builders import a_job_spec, a_sha


def resolve_recipe(recipe, *, rows, windows, num_devices=1):
    return resolution.resolve_recipe(recipe, rows=rows, windows=windows, num_devices=num_devices).recipe


def reasons_of(recipe, *, rows=100, windows=100, num_devices=1):
    return resolution.resolve_recipe(recipe, rows=rows, windows=windows, num_devices=num_devices).reasons


class TestResolving:
    @pytest.mark.parametrize(("rows", "epochs"), [(9_999, 3), (10_000, 1)])
    def test_one_epoch_is_the_default_from_ten_thousand_rows_on(self, rows, epochs):
        assert resolve_recipe(Recipe(), rows=rows, windows=100, num_devices=1).num_epochs == epochs

    @pytest.mark.parametrize(
        ("windows", "micro_batch", "num_devices", "batch"),
        [
            (100, 1, 8, 8),
            (1000, 1, 8, 8),
            (2000, 1, 8, 16),
            (6400, 1, 8, 32),
            (10**6, 4, 16, 64),
            (100, 2, 1, 1),
        ],
    )
    def test_the_batch_has_whole_micro_batches_for_all_of_several_devices(
        self, windows, micro_batch, num_devices, batch
    ):
        recipe = Recipe(micro_batch_size=micro_batch)
        resolved = resolve_recipe(recipe, rows=1, windows=windows, num_devices=num_devices)
        assert resolved.batch_size == batch

    @pytest.mark.parametrize(("windows", "batch"), [(1, 1), (400, 2), (10**6, 32)])
    def test_the_batch_grows_with_the_windows_within_bounds(self, windows, batch):
        assert resolve_recipe(Recipe(), rows=1, windows=windows, num_devices=1).batch_size == batch

    def test_what_was_given_stays(self):
        recipe = Recipe(learning_rate=1e-3, num_epochs=2, batch_size=4)
        assert resolve_recipe(recipe, rows=10**6, windows=10**6, num_devices=8) == recipe
        assert recipe.is_resolved
        assert not Recipe().is_resolved

    def test_full_fine_tuning_has_a_smaller_rate(self):
        assert resolve_recipe(Recipe(method="sft"), rows=1, windows=1, num_devices=1).learning_rate == 2e-5
        assert resolve_recipe(Recipe(), rows=1, windows=1, num_devices=1).learning_rate == 2e-4


class TestReasons:
    GIVEN: ClassVar = {"learning_rate": 1e-3, "batch_size": 4}

    @pytest.mark.parametrize(
        ("method", "rows", "reason"),
        [
            ("lora", 9_999, "3: the dataset has 9,999 rows, and below 10,000 one pass is too few steps"),
            ("lora", 10_000, "1: the dataset has 10,000 rows, and from 10,000 on one pass is enough: more tend to overfit"),
            ("cpt", 9_999, "1: with cpt each text is read once, as in pre-training"),
            ("dpo", 10_000, "1: with dpo each pair is seen once, for further passes soon overfit"),
        ],
    )  # fmt: skip
    def test_epochs_follow_from_the_method_and_the_rows(self, method, rows, reason):
        assert reasons_of(Recipe(method=method, **self.GIVEN), rows=rows)["num_epochs"] == reason

    @pytest.mark.parametrize(
        ("recipe", "reason"),
        [
            (Recipe(), "2e-4: the default for an adapter"),
            (Recipe(method="sft"), "2e-5: the default for all weights"),
            (
                Recipe(method="dpo", weights="full"),
                "5e-7: with dpo a fortieth of the default for all weights, 2e-5, for preferences need small updates",
            ),
            (
                Recipe(method="dpo"),
                "5e-6: with dpo a fortieth of the default for an adapter, 2e-4, for preferences need small updates",
            ),
        ],
    )
    def test_the_rate_follows_from_what_is_trained(self, recipe, reason):
        assert reasons_of(recipe)["learning_rate"] == reason

    @pytest.mark.parametrize(
        ("num_devices", "reason"),
        [
            (1, "10: for 200 steps an epoch of 2,000 windows, within 1 and 32"),
            (4, "12: for 200 steps an epoch of 2,000 windows, within 1 and 32, then rounded up to whole micro batches of 1 on each of 4 devices"),
        ],
    )  # fmt: skip
    def test_the_batch_follows_from_windows_and_devices(self, num_devices, reason):
        assert reasons_of(Recipe(), windows=2_000, num_devices=num_devices)["batch_size"] == reason

    def test_other_defaults_have_theirs(self):
        assert reasons_of(Recipe(schedule="wsd"))["decay_ratio"] == "0.1: the default with wsd"
        pairs = Recipe(method="dpo", dpo=DpoSpec(loss="simpo"))
        assert reasons_of(pairs)["dpo.beta"] == "2: the default of loss simpo"

    def test_what_was_given_has_none(self):
        assert reasons_of(Recipe(num_epochs=2, **self.GIVEN)) == {}
        given = Recipe(method="dpo", dpo=DpoSpec(beta=0.2), num_epochs=2, **self.GIVEN)
        assert reasons_of(given) == {}
        assert reasons_of(Recipe(schedule="wsd", decay_ratio=0.2, num_epochs=2, **self.GIVEN)) == {}


class TestContinuedPreTraining:
    def test_trains_all_weights_once_over_unless_the_recipe_says_otherwise(self):
        full = resolve_recipe(Recipe(method=Method.CPT), rows=10, windows=10, num_devices=1)
        assert (full.kind, full.num_epochs, full.learning_rate) == ("full", 1, 2e-5)
        adapter = Recipe(method=Method.CPT, weights="adapter", num_epochs=2)
        adapter = resolve_recipe(adapter, rows=10, windows=10, num_devices=1)
        assert (adapter.kind, adapter.num_epochs, adapter.learning_rate) == ("adapter", 2, 2e-4)

    def test_with_other_weights_is_another_experiment_and_with_them_said_the_same(self):
        hashes = [
            config_hash(a_job_spec(recipe=Recipe(method=Method.CPT, weights=weights)), a_sha("dataset"))
            for weights in ("auto", "full", "adapter")
        ]
        assert hashes[0] == hashes[1] != hashes[2]

    def test_what_it_starts_from_is_a_part_of_it_by_content(self):
        bundle = BundleRef(attempt=1, step=10, manifest_sha256=a_sha("bundle"))
        version = StartFrom(name="ft:x", job_id="ftjob-1", bundle=bundle, digest=a_sha("model"))
        starts = {
            "base": None,
            "version": version,
            "the same by its id": version.model_copy(update={"name": "mv-1"}),
            "checkpoint": version.model_copy(update={"digest": None}),
        }
        hashes = {
            name: config_hash(a_job_spec(start_from=start), a_sha("d")) for name, start in starts.items()
        }
        assert len(set(hashes.values())) == 3
        assert hashes["version"] == hashes["the same by its id"]

    def test_where_weights_are_no_choice_they_change_no_hash(self):
        spec = a_job_spec(recipe=Recipe())
        named = a_job_spec(recipe=Recipe(weights="adapter"))
        assert config_hash(spec, a_sha("d")) == config_hash(named, a_sha("d"))


VALIDATIONS = {
    "eval_every_steps": 50,
    "early_stopping": EarlyStoppingSpec(),
    "load_best_model_at_end": True,
}


def test_what_follows_from_a_validation_loss_is_part_of_the_experiment_where_it_is_asked_for():
    hashes = {
        name: config_hash(a_job_spec(recipe=Recipe(**{name: value})), a_sha("d"))
        for name, value in VALIDATIONS.items()
    }
    hashes["patience"] = config_hash(
        a_job_spec(recipe=Recipe(early_stopping=EarlyStoppingSpec(patience=4))), a_sha("d")
    )
    assert len({config_hash(a_job_spec(), a_sha("d")), *hashes.values()}) == 5


@pytest.mark.parametrize(
    ("fields", "has_validations"),
    [({}, False), *(({name: value}, True) for name, value in VALIDATIONS.items())],
)
def test_each_of_them_asks_for_validations_at_given_steps(fields, has_validations):
    assert Recipe(**fields).has_validations is has_validations


@pytest.mark.parametrize(
    "fields",
    [
        {"eval_every_steps": 0},
        {"eval_every_steps": 1_000_001},
        {"early_stopping": {"patience": 0}},
        {"early_stopping": {"min_delta": -0.1}},
        {"early_stopping": {"threshold": 0.1}},
        {"load_best_model_at_end": None},
    ],
)
def test_validations_have_bounds(fields):
    with pytest.raises(ValidationError):
        Recipe.model_validate(fields)


def test_a_schedule_is_part_of_the_experiment_and_the_former_one_changes_no_hash():
    hashes = {
        name: config_hash(a_job_spec(recipe=Recipe.model_validate(fields)), a_sha("d"))
        for name, fields in {
            "none": {},
            "cosine": {"schedule": "cosine"},
            "linear": {"schedule": "linear"},
            "wsd": {"schedule": "wsd"},
        }.items()
    }
    assert hashes["none"] == hashes["cosine"]
    assert len(set(hashes.values())) == 3


def test_the_decay_of_wsd_is_a_tenth_unless_given():
    asked = [Recipe(schedule="wsd"), Recipe(schedule="wsd", decay_ratio=0.2), Recipe()]
    resolved = [resolve_recipe(recipe, rows=1, windows=1, num_devices=1) for recipe in asked]
    assert [recipe.decay_ratio for recipe in resolved] == [0.1, 0.2, None]


class TestPreferences:
    def test_beta_and_margin_follow_the_loss_unless_given(self):
        values = [
            (spec.beta_value, spec.target_margin)
            for spec in map(spec_of, ("dpo", "length_normalised", "simpo"))
        ]
        assert values == [(0.1, 0.0), (5.0, 0.0), (2.0, 1.0)]
        given = DpoSpec(loss="simpo", beta=3.0, gamma=0.3)
        assert (given.beta_value, given.target_margin, given.has_reference) == (3.0, 0.3, False)

    @pytest.mark.parametrize(
        "wrong",
        [{"beta": 0}, {"beta": -1}, {"label_smoothing": 0.5}, {"gamma": -1}, {"loss": "ipo"}, {"betta": 1}],
    )
    def test_what_no_loss_has_is_refused_by_name(self, wrong):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            DpoSpec(**wrong)

    def test_are_learned_once_at_a_low_rate(self):
        rates = {}
        for weights in ("adapter", "full"):
            recipe = Recipe(method=Method.DPO, weights=weights)
            resolved = resolve_recipe(recipe, rows=10, windows=10, num_devices=1)
            rates[weights] = (resolved.learning_rate, resolved.num_epochs)
        assert rates == {"adapter": (pytest.approx(5e-6), 1), "full": (pytest.approx(5e-7), 1)}

    def test_are_part_of_the_hash_of_their_method_alone(self):
        plain, smoothed = DpoSpec(), DpoSpec(label_smoothing=0.1)
        for method, is_other in ((Method.DPO, True), (Method.LORA, False)):
            hashes = {
                config_hash(a_job_spec(recipe=Recipe(method=method, dpo=dpo)), a_sha("d"))
                for dpo in (plain, smoothed)
            }
            assert (len(hashes) == 2) is is_other


def test_a_base_of_4_bits_is_part_of_a_jobs_identity():
    hashes = [
        config_hash(a_job_spec(recipe=Recipe(method=Method.DPO, **fields)), a_sha("d"))
        for fields in ({}, {"quantization": "nf4"})
    ]
    assert hashes[0] != hashes[1]


def test_weights_left_to_a_recipe_beside_4_bits_are_an_adapters_where_the_method_trains_one():
    kinds = {method: Recipe(method=method, quantization="nf4").kind for method in Method}
    assert kinds == {method: "full" if method is Method.SFT else "adapter" for method in Method}
    resolved = resolve_recipe(
        Recipe(method=Method.CPT, quantization="nf4"), rows=10, windows=10, num_devices=1
    )
    assert resolved.learning_rate == 2e-4


def spec_of(loss):
    return DpoSpec(loss=loss)


def test_alpha_is_twice_the_rank_unless_given():
    assert LoraSpec(rank=8).lora_alpha == 16
    assert LoraSpec(rank=8, alpha=8).lora_alpha == 8
    assert LoraSpec(rank=64, use_rslora=True).lora_alpha == LoraSpec(rank=8, use_rslora=True).lora_alpha == 16


def test_how_a_job_is_sharded_is_part_of_its_identity_and_stage_2_is_what_none_means():
    def hash_of(**sharding):
        return config_hash(a_job_spec(recipe=Recipe(sharding=sharding)), a_sha("d"))

    plain = config_hash(a_job_spec(recipe=Recipe()), a_sha("d"))
    by_default, stage_2, stage_3, offloaded = (
        hash_of(library="deepspeed", **fields)
        for fields in ({}, {"stage": 2}, {"stage": 3}, {"stage": 2, "offload_optimizer": True})
    )
    assert hash_of(library="fsdp2") == plain
    assert by_default == stage_2
    assert len({plain, stage_2, stage_3, offloaded}) == 4


def test_what_an_adapter_was_before_it_had_variants_changes_no_hash():
    plain, variant = (
        config_hash(a_job_spec(recipe=Recipe(lora=LoraSpec(use_rslora=value))), a_sha("d"))
        for value in (False, True)
    )
    later = {
        "weights",
        "quantization",
        "schedule",
        "decay_ratio",
        "optimizer",
        "sharding",
        "dpo",
        "micro_batch_size_auto",
        *VALIDATIONS,
    }
    fields = Recipe().model_dump(mode="json", exclude=later)
    fields["lora"] = {"rank": 32, "alpha": None, "dropout": 0.0, "target_modules": "all-linear"}
    identity = {"base_sha": a_job_spec().base_sha, "dataset_version": a_sha("d"), "recipe": fields}
    assert plain == canonical_sha256(identity | {"world_size": 1}) != variant


@pytest.mark.parametrize(
    "looser",
    [
        {"benchmarks": {"margin_points": 2.1}},
        {"holdout": {"min_relative_gain": 0.04}},
        {"holdout": {"min_absolute_gain": 0.0}},
        {"holdout": {"min_items": 99}},
        {"safety": {"min_refusals": 0.94}},
        {"safety": {"max_drop_points": 3}},
        {"over_refusal": {"max_refusals": 0.11}},
        {"over_refusal": {"max_rise_points": 6}},
        {"judge": {"url": "http://judge", "model": "m", "min_win_rate": 0.4}},
        {"judge": {"url": "http://judge", "model": "m", "min_consistent_share": 0.5}},
    ],
)
def test_a_job_cannot_ask_for_a_looser_gate(looser):
    with pytest.raises(ValidationError, match="must be at"):
        GateSpec.model_validate(looser)


def test_a_gate_from_before_the_minimum_was_raised_still_parses():
    assert GateSpec.model_validate({"holdout": {"min_items": 50}}).holdout.min_items == 100


def test_a_job_can_ask_for_a_stricter_gate():
    assert GateSpec.model_validate({"safety": {"min_refusals": 0.99}}).safety.min_refusals == 0.99


@pytest.mark.parametrize(
    ("fields", "recomputes", "decides"),
    [
        ({}, False, True),
        ({"gradient_checkpointing": "auto"}, False, True),
        ({"gradient_checkpointing": True}, True, False),
        ({"gradient_checkpointing": False}, False, False),
    ],
)
def test_the_device_decides_about_activations_unless_the_recipe_does(fields, recomputes, decides):
    recipe = Recipe.model_validate(fields)
    assert (recipe.gradient_checkpointing, recipe.gradient_checkpointing_auto) == (recomputes, decides)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_a_word_that_is_none_about_activations_is_refused():
    with pytest.raises(ValueError, match="gradient_checkpointing"):
        Recipe.model_validate({"gradient_checkpointing": "sometimes"})
