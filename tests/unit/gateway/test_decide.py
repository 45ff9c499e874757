from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import ClassVar

import pytest

from schemas.base import BundleRef, StartFrom
from schemas.job import SubmitJob
from schemas.specification import DatasetFormat, DatasetSpec, JobSpec, LoraSpec, Method, Recipe, Tier
from schemas.training import StepMetrics, StepValidated
from services.gateway.decide import (
    RESULTS_PURPOSE,
    BaseModel,
    Inputs,
    Trained,
    dataset_command,
    dataset_commands,
    file_ids,
    job_command,
    seconds_left,
    steps_to_show,
)
from services.gateway.model import Step, StoredFile
from services.gateway.requests import CreateDataset, CreateJob
from shared.errors import Refused

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SHA = "5e" * 32


def a_file(file_id: str = "file-1", file_format: DatasetFormat | None = DatasetFormat.CHAT) -> StoredFile:
    return StoredFile(
        file_id=file_id,
        tenant="acme",
        sha256=SHA,
        size_bytes=10,
        filename="train.jsonl",
        purpose="fine-tune",
        format=file_format,
        num_rows=None,
        created_at=NOON,
    )


def a_request(**changes: object) -> CreateJob:
    return CreateJob.model_validate({"model": "tiny", "training_file": "file-1"} | changes)


def submit(request: CreateJob, *, base: bool = True, files: dict | None = None, tier: Tier = Tier.STANDARD):
    inputs = Inputs(
        BaseModel("tiny", SHA) if base else None, {"file-1": a_file()} if files is None else files
    )
    return job_command(request, inputs, tenant="acme", tier=tier, job_id="ftjob-1", dataset_ids=["ds-1"])


class TestJobCommand:
    def test_stamps_tenant_tier_and_the_sha_of_the_base(self):
        command = submit(a_request(), tier=Tier.PREMIUM)
        assert (command.tenant, command.spec.tier, command.spec.base_sha) == ("acme", Tier.PREMIUM, SHA)
        assert (command.spec.training_file, command.spec.suffix) == (a_file().ref, "")

    def test_carries_all_that_a_request_may_name(self):
        request = a_request(
            validation_file="file-2",
            suffix="mine",
            metadata={"team": "a"},
            retune={
                "holdout_file": "file-3",
                "resources": {"nodes": 2},
                "gate": {"benchmarks": {"margin_points": 1.5}},
                "auto_deploy": False,
                "max_cost": "12.5",
                "allow_ungated": True,
                "alerts": {"plateau": "off"},
                "recipe": {"num_epochs": 2},
            },
        )
        files = {name: a_file(name) for name in ("file-1", "file-2", "file-3")}
        command = submit(request, files=files, tier=Tier.PREMIUM)
        assert command == SubmitJob(
            job_id="ftjob-1",
            tenant="acme",
            dataset_id="ds-1",
            spec=JobSpec(
                base_model="tiny",
                base_sha=SHA,
                recipe=request.retune.recipe,
                resources=request.retune.resources,
                gate=request.retune.gate,
                training_file=files["file-1"].ref,
                validation_file=files["file-2"].ref,
                holdout=files["file-3"].ref,
                suffix="mine",
                auto_deploy=False,
                alerts=request.retune.alerts,
                max_cost=Decimal("12.5"),
                allow_ungated=True,
                tier=Tier.PREMIUM,
                metadata={"team": "a"},
            ),
        )
        assert (command.spec.resources.nodes, command.spec.recipe.num_epochs) == (2, 2)

    def test_openais_dials_win_over_ours(self):
        dials = {"n_epochs": 7, "batch_size": 4, "learning_rate_multiplier": 0.5}
        ours = {"num_epochs": 2, "batch_size": 8, "lora": {"rank": 8}}
        method = {"type": "supervised", "supervised": {"hyperparameters": dials}}
        recipe = submit(a_request(method=method, retune={"recipe": ours}, seed=3)).spec.recipe
        assert (recipe.num_epochs, recipe.batch_size, recipe.learning_rate_multiplier) == (7, 4, 0.5)
        assert (recipe.lora.rank, recipe.seed) == (8, 3)

    @pytest.mark.parametrize(
        ("changes", "options", "param"),
        [
            ({}, {"base": False}, "model"),
            ({}, {"files": {}}, "training_file"),
            ({"validation_file": "file-2"}, {}, "validation_file"),
            ({"retune": {"holdout_file": "file-2"}}, {}, "retune.holdout_file"),
            ({}, {"files": {"file-1": a_file(file_format=DatasetFormat.TEXT)}}, "training_file"),
            ({"integrations": [{"type": "wandb"}]}, {}, "integrations"),
            ({"method": {"type": "reinforcement"}}, {}, "method.type"),
            ({"method": {"type": "dpo"}}, {}, "training_file"),
            ({"method": {"type": "supervised", "dpo": {}}}, {}, "method.dpo"),
            ({"method": {"type": "dpo", "supervised": {}}}, {}, "method.supervised"),
            ({"method": {"type": "dpo"}, "retune": {"recipe": {"method": "lora"}}}, {}, "method.type"),
            ({"method": {"type": "supervised"}, "retune": {"recipe": {"method": "dpo"}}}, {}, "method.type"),
            ({"retune": {"recipe": {"dpo": {"beta": 1}}}}, {}, "retune.recipe.dpo"),
            ({"retune": {"recipe": {"method": "cpt"}}}, {}, "training_file"),
            ({"retune": {"recipe": {"method": "cpt"}}, "method": {"type": "supervised"}}, {}, "method.type"),
        ],
    )
    def test_what_is_wrong_is_named(self, changes, options, param):
        with pytest.raises(Refused) as caught:
            submit(a_request(**changes), **options)
        assert caught.value.param == param
        assert param.split(".")[-1] in caught.value.message

    def test_the_base_model_and_the_formats_are_in_the_words(self):
        with pytest.raises(Refused, match="base model 'tiny' is not registered"):
            submit(a_request(), base=False)
        with pytest.raises(Refused, match="method 'lora' expects chat or prompt_completion"):
            submit(a_request(), files={"file-1": a_file(file_format=DatasetFormat.TEXT)})


class TestStart:
    START = StartFrom(
        name="ft:tiny:acme:x:1",
        job_id="ftjob-0",
        bundle=BundleRef(attempt=1, step=10, manifest_sha256=SHA),
        digest=SHA,
    )
    OWN = LoraSpec(rank=8, alpha=4, dropout=0.2, target_modules=("q_proj",))

    def submit(self, trained_by=None, **recipe):
        base = BaseModel("tiny", SHA)
        trained = Trained(self.START, base, trained_by or Recipe(lora=self.OWN))
        inputs = Inputs(base, {"file-1": a_file()}, trained)
        request = a_request(model=self.START.name, retune={"recipe": recipe})
        ids = {"job_id": "ftjob-1", "dataset_ids": ["ds-1"]}
        return job_command(request, inputs, tenant="acme", tier=Tier.STANDARD, **ids).spec

    def test_an_adapter_is_trained_on_as_it_is_and_its_dropout_is_the_jobs_own(self):
        spec = self.submit(lora={"dropout": 0.1})
        assert (spec.base_model, spec.base_sha, spec.start_from) == ("tiny", SHA, self.START)
        assert spec.recipe.lora == self.OWN.model_copy(update={"dropout": 0.1})

    def test_what_contradicts_it_is_refused_under_the_requests_names(self):
        for recipe, param in (
            ({"lora": {"rank": 16}}, "lora.rank"),
            ({"method": "sft"}, "method"),
        ):
            with pytest.raises(Refused, match=r"and ft:tiny:acme:x:1 is .*Nearest that works") as refused:
                self.submit(**recipe)
            assert refused.value.param == f"retune.recipe.{param}"

    def test_a_full_model_keeps_no_adapter(self):
        spec = self.submit(Recipe(method="sft"), method="sft")
        assert spec.recipe.lora == LoraSpec()
        with pytest.raises(Refused, match="served on a registered base model only"):
            self.submit(Recipe(method="sft"))


class TestTexts:
    FILES: ClassVar = {name: a_file(name, file_format=DatasetFormat.TEXT) for name in ("file-1", "file-2")}
    PERPLEXITY: ClassVar = {"holdout": {"metric": "perplexity"}}

    def submit(self, **extensions: object):
        ours = {"recipe": {"method": "cpt"}, "holdout_file": "file-2"} | extensions
        return submit(a_request(retune=ours), files=self.FILES)

    def test_are_what_continued_pre_training_takes_and_is_asked(self):
        spec = self.submit(gate=self.PERPLEXITY).spec
        assert (spec.recipe.kind, spec.holdout.file_id) == ("full", "file-2")

    def test_have_no_answers_for_another_metric(self):
        with pytest.raises(Refused, match=r"Nearest that works: gate\.holdout\.metric perplexity") as caught:
            self.submit()
        assert (caught.value.code, caught.value.param) == (
            "holdout_without_answers",
            "retune.gate.holdout.metric",
        )

    def test_are_no_holdout_of_what_learns_answers(self):
        files = {"file-1": a_file(), "file-2": self.FILES["file-2"]}
        request = a_request(retune={"holdout_file": "file-2", "gate": self.PERPLEXITY})
        with pytest.raises(Refused, match="the gate asks chat or prompt_completion") as caught:
            submit(request, files=files)
        assert caught.value.param == "retune.holdout_file"


class TestPreferences:
    FILES: ClassVar = {"file-1": a_file(file_format=DatasetFormat.PREFERENCE), "file-2": a_file("file-2")}

    def submit(self, hyperparameters: dict | None = None, **extensions: object):
        method = {"type": "dpo"} | ({"dpo": {"hyperparameters": hyperparameters}} if hyperparameters else {})
        return submit(a_request(method=method, retune=extensions), files=self.FILES)

    def test_are_asked_for_by_openais_method(self):
        recipe = self.submit(
            {"beta": 0.3, "n_epochs": 2, "batch_size": "auto"}, recipe={"seed": 4}
        ).spec.recipe
        assert (recipe.method, recipe.kind) == (Method.DPO, "adapter")
        assert (recipe.dpo.beta, recipe.num_epochs, recipe.batch_size, recipe.seed) == (0.3, 2, "auto", 4)

    def test_have_openais_beta_over_ours_and_ours_where_theirs_is_auto(self):
        ours = {"dpo": {"loss": "simpo", "beta": 2.5}, "weights": "full"}
        for theirs, expected in (({"beta": 1.0}, 1.0), ({"beta": "auto"}, 2.5), (None, 2.5)):
            recipe = self.submit(theirs, recipe=ours).spec.recipe
            assert (recipe.dpo.loss, recipe.dpo.beta, recipe.kind) == ("simpo", expected, "full")

    def test_may_be_named_twice_alike(self):
        assert self.submit(recipe={"method": "dpo"}).spec.recipe.method is Method.DPO

    def test_are_asked_by_the_gate_with_rows_that_have_an_answer(self):
        assert self.submit(holdout_file="file-2").spec.holdout.file_id == "file-2"
        with pytest.raises(
            Refused, match="after method 'dpo' the gate asks chat or prompt_completion"
        ) as caught:
            self.submit(holdout_file="file-1")
        assert caught.value.param == "retune.holdout_file"


def a_dataset(request: CreateJob | CreateDataset, *files: StoredFile, base: bool = True) -> DatasetSpec:
    inputs = Inputs(BaseModel("tiny", SHA) if base else None, {file.ref.file_id: file for file in files})
    return dataset_command(request, inputs, tenant="acme", dataset_id="ds-1").spec


class TestDatasetCommand:
    def test_carries_all_files_and_the_safety_mix(self):
        ours = {"safety_mix": {"file": "file-2", "share": 0.3}, "holdout_file": "file-3"}
        request = a_request(validation_file="file-4", retune=ours)
        training, mix, holdout, validation = (a_file(f"file-{number}") for number in range(1, 5))
        assert a_dataset(request, training, mix, holdout, validation) == DatasetSpec(
            base_model="tiny",
            base_sha=SHA,
            training_file=training.ref,
            validation_file=validation.ref,
            holdout=holdout.ref,
            safety_mix={"file": mix.ref, "share": 0.3},
            method=Method.LORA,
        )
        assert sorted(file_ids(request)) == ["file-1", "file-2", "file-3", "file-4"]

    def test_has_the_method_of_the_job_or_of_its_own_recipe(self):
        pairs = a_file(file_format=DatasetFormat.PREFERENCE)
        own = {"model": "tiny", "training_file": "file-1", "retune": {"recipe": {"method": "dpo"}}}
        for request in (a_request(method={"type": "dpo"}), CreateDataset.model_validate(own)):
            assert a_dataset(request, pairs).method is Method.DPO

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"training_file": "file-9"}, "training_file"),
            ({"validation_file": "file-9"}, "validation_file"),
            ({"retune": {"holdout_file": "file-9"}}, "retune.holdout_file"),
            ({"retune": {"safety_mix": {"file": "file-9"}}}, "retune.safety_mix.file"),
        ],
    )
    def test_a_missing_file_is_named_with_its_parameter(self, changes, param):
        with pytest.raises(Refused, match="file 'file-9' does not exist") as refused:
            a_dataset(a_request(**changes), a_file())
        assert refused.value.param == param

    def test_a_base_model_that_is_not_registered_is_named(self):
        with pytest.raises(Refused, match="base model 'tiny' is not registered"):
            a_dataset(a_request(), a_file(), base=False)

    def test_the_files_of_a_request_are_those_of_all_stages(self):
        stages = [
            {
                "training_file": f"{name}-training",
                "validation_file": f"{name}-validation",
                "safety_mix": {"file": f"{name}-mix", "share": 0.1},
            }
            for name in ("second", "third")
        ]
        request = a_request(
            validation_file="file-2",
            retune={"later_stages": stages, "safety_mix": {"file": "file-3", "share": 0.3}},
        )
        assert sorted(file_ids(request)) == sorted(
            ["file-1", "file-2", "file-3"]
            + [f"{name}-{of}" for name in ("second", "third") for of in ("training", "validation", "mix")]
        )

    def test_conversations_are_refused_where_the_base_has_no_template(self):
        chat, pairs = a_file(), a_file(file_format=DatasetFormat.PROMPT_COMPLETION)
        base = BaseModel("tiny", SHA, has_template=False)
        with pytest.raises(Refused, match="'tiny' has no chat template: bring rows of prompt") as refused:
            dataset_command(a_request(), Inputs(base, {"file-1": chat}), tenant="acme", dataset_id="ds-1")
        assert refused.value.param == "training_file"
        dataset_command(a_request(), Inputs(base, {"file-1": pairs}), tenant="acme", dataset_id="ds-1")


class TestPolicy:
    @pytest.mark.parametrize(
        ("policy", "param"),
        [
            ({"contamination": "keep"}, "retune.policy.contamination"),
            ({"contamination_ratio": 0.51}, "retune.policy.contamination_ratio"),
        ],
    )
    def test_what_would_keep_leaks_is_refused_to_tenants(self, policy: dict[str, object], param: str):
        with pytest.raises(
            Refused, match=r"expected ('drop'|at most 0.5).*: only an operator may"
        ) as refused:
            a_dataset(a_request(retune={"policy": policy}), a_file())
        error = refused.value
        assert (error.code, error.param) == ("operators_only", param)

    def test_stricter_is_allowed(self):
        policy = {"contamination": "reject_file", "contamination_ratio": 0.2, "max_dropped_ratio": 1}
        assert a_dataset(a_request(retune={"policy": policy}), a_file()).policy.contamination_ratio == 0.2


def test_a_table_of_results_is_nothing_to_train_on():
    results = a_file(file_format=None).model_copy(update={"purpose": RESULTS_PURPOSE})
    with pytest.raises(Refused) as raised:
        submit(a_request(), files={"file-1": results})
    error = raised.value
    assert (error.param, error.code) == ("training_file", "wrong_purpose")


class TestStepsToShow:
    def shown(self, num_steps: int | None, first: int = 1) -> list[int]:
        steps = [
            StepMetrics(
                step=step,
                time=NOON,
                loss=1.0,
                learning_rate=0.1,
                grad_norm=1.0,
                num_tokens=1,
                tokens_per_second=1.0,
                memory_bytes=1,
                epoch=0.5,
            )
            for step in range(first, (num_steps or 150) + 1)
        ]
        return [step.step for step in steps_to_show(steps, num_steps)]

    @pytest.mark.parametrize("num_steps", [1, 7, 100])
    def test_are_all_of_a_short_job(self, num_steps):
        assert self.shown(num_steps) == list(range(1, num_steps + 1))

    @pytest.mark.parametrize("num_steps", [101, 531, 100_000])
    def test_are_a_hundred_of_a_long_one_with_its_last(self, num_steps):
        shown = self.shown(num_steps)
        assert (len(shown), shown[-1]) == (100, num_steps)

    @pytest.mark.parametrize(("every", "number"), [(50, 10), (6, 88), (5, 99), (2, 99), (None, 531)])
    def test_of_validations_are_all_unless_they_are_more_than_a_hundred(self, every, number):
        steps = range(every or 1, 532, every or 1)
        validations = [StepValidated(step=step, metrics={}) for step in steps]
        assert len(steps_to_show(validations, 531, every=every)) == number

    def test_do_not_depend_on_how_steps_were_batched(self):
        whole = self.shown(531)
        assert self.shown(531, first=300) == [step for step in whole if step >= 300]

    def test_are_all_where_the_length_is_not_known(self):
        assert len(self.shown(None)) == 150


class TestSecondsLeft:
    def left(self, *after: float, num_left: int) -> float | None:
        steps = [
            Step(
                step=number,
                attempt=1,
                metrics={"time": (NOON + timedelta(seconds=each)).isoformat()},
                validation=None,
            )
            for number, each in enumerate(after)
        ]
        return seconds_left(steps[::-1], num_left=num_left)

    def test_are_those_of_as_many_steps_as_are_left(self):
        assert self.left(0, 3, 4, num_left=10) == 20
        assert self.left(0, 0.2, num_left=3) == pytest.approx(0.6)

    def test_are_none_of_a_job_that_has_made_them_all(self):
        assert self.left(0, 3, 4, num_left=0) == 0
        assert self.left(0, 3, 4, num_left=-1) == 0

    def test_are_not_known_of_one_step(self):
        assert self.left(0, num_left=10) is None


class TestStages:
    STAGE: ClassVar = {"recipe": {"method": "dpo"}, "training_file": "file-2"}
    FILES: ClassVar = {"file-1": a_file(), "file-2": a_file("file-2", DatasetFormat.PREFERENCE)}
    IDS: ClassVar = {"tenant": "acme", "dataset_ids": ["ds-1", "ds-2"]}

    def commands(self, *stages, **ours):
        return self.job(*stages, **ours), self.datasets(*stages, **ours)

    def job(self, *stages, **ours):
        request = a_request(retune=ours | {"later_stages": stages})
        inputs = Inputs(BaseModel("tiny", SHA), self.FILES)
        return job_command(request, inputs, tier=Tier.STANDARD, job_id="ftjob-1", **self.IDS)

    def datasets(self, *stages, **ours):
        request = a_request(retune=ours | {"later_stages": stages})
        return dataset_commands(request, Inputs(BaseModel("tiny", SHA), self.FILES), **self.IDS)

    def test_each_has_a_dataset_of_its_own_files(self):
        job, datasets = self.commands(self.STAGE | {"validation_file": "file-2"}, holdout_file="file-1")
        assert (job.dataset_id, job.later_dataset_ids) == ("ds-1", ("ds-2",))
        assert [(each.dataset_id, each.spec.method) for each in datasets] == [
            ("ds-1", "lora"),
            ("ds-2", "dpo"),
        ]
        assert [each.spec.holdout for each in datasets] == [a_file().ref] * 2
        [stage] = job.spec.later_stages
        assert stage.training_file == datasets[1].spec.training_file == self.FILES["file-2"].ref
        assert stage.validation_file == datasets[1].spec.validation_file == self.FILES["file-2"].ref

    def test_an_adapter_stays_what_it_is_where_the_stage_does_not_say(self):
        job, _ = self.commands(self.STAGE, recipe={"lora": {"rank": 8, "dropout": 0.1}})
        assert job.spec.later_stages[0].recipe.lora == LoraSpec(rank=8)

    @pytest.mark.parametrize(
        ("changes", "code", "param"),
        [
            ({"recipe": {"method": "sft"}, "training_file": "file-1"}, "other_weights", "recipe.method"),
            ({"training_file": "file-1"}, "wrong_format", "training_file"),
            ({"policy": {"contamination": "keep"}}, "operators_only", "policy.contamination"),
        ],
    )
    def test_what_is_wrong_with_one_is_refused_with_its_place(self, changes, code, param):
        with pytest.raises(Refused, match=r"later_stages\[0\]") as refused:
            self.commands(self.STAGE | changes)
        assert (refused.value.code, refused.value.param) == (code, f"retune.later_stages[0].{param}")

    @pytest.mark.parametrize("name", ["training_file", "validation_file"])
    def test_a_missing_file_of_one_is_refused_with_its_place(self, name):
        for commands in (self.job, self.datasets):
            with pytest.raises(Refused, match="file 'file-3' does not exist") as refused:
                commands(self.STAGE | {name: "file-3"})
            assert refused.value.param == f"retune.later_stages[0].{name}"

    def test_a_dataset_of_its_own_has_none(self):
        asked = {"model": "tiny", "training_file": "file-1", "retune": {"later_stages": [self.STAGE]}}
        inputs = Inputs(BaseModel("tiny", SHA), self.FILES)
        with pytest.raises(Refused, match="one request for each"):
            dataset_command(CreateDataset.model_validate(asked), inputs, tenant="acme", dataset_id="ds-1")
