"""Pure: from a checked request to commands, from states to OpenAI's words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeVar

from schemas.base import FileRef, StartFrom
from schemas.compatibility import check, check_holdout_of_texts, check_start, holdout_formats
from schemas.dataset import SubmitDataset
from schemas.job import SubmitJob
from schemas.lifecycle import TERMINAL, JobState
from schemas.recipe_rules import Refusal
from schemas.specification import (
    FORMATS_OF_METHOD,
    DatasetFormat,
    DatasetPolicy,
    DatasetSpec,
    JobSpec,
    LoraSpec,
    Method,
    Recipe,
    SafetyMix,
    StageSpec,
    Tier,
)
from services.gateway.model import Job, Step, StoredFile
from services.gateway.obstacles import Obstacle
from services.gateway.requests import (
    NOT_AVAILABLE,
    CreateDataset,
    CreateJob,
    Hyperparameters,
    MethodChoice,
    StageChoice,
)
from shared.errors import Refused

JobStatus = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
STATUS_OF_STATE: Mapping[JobState, JobStatus] = {
    JobState.VALIDATING: "validating_files",
    JobState.QUEUED: "queued",
    JobState.PROVISIONING: "queued",
    JobState.RUNNING: "running",
    JobState.STOPPING: "running",
    JobState.PAUSED: "paused",
    JobState.EVALUATING: "running",
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
WHY_NOT = "only an operator may have rows trained on that are in a benchmark, suite or holdout"
SHOWN_STEPS = 100
"""Steps of a job that its timeline shows the numbers of."""
RESULTS_PURPOSE = "fine-tune-results"
"""Purpose of files that the gateway writes itself."""

GateStatus = Literal["passed", "failed", "inconclusive", "not_asked", "pending"]
VERDICTS: Mapping[str, GateStatus] = {
    "passed": "passed",
    "failed": "failed",
    "inconclusive": "inconclusive",
}
"""Outcomes of an evaluation that has ended."""


@dataclass(frozen=True)
class Ending:
    """What is known of a job's end and of its gate. Topics come in any order, so any part may be missing."""

    state: JobState
    has_model: bool
    """Whether the registry made a version of what was trained."""
    is_promoted: bool | None
    """Whether it was promoted; None before the job has succeeded, and in jobs that ended before this was kept."""
    is_deployed: bool
    auto_deploy: bool
    verdict: str | None
    """Outcome of the newest evaluation that has ended, `running` where none has; None where none began."""
    is_trial: bool = False
    """Whether a sweep decides after its end if it goes to the gate at all."""

    @property
    def gate(self) -> GateStatus:
        """A promotion is proof of a pass, also where the verdict itself is not heard yet."""
        if verdict := VERDICTS.get(self.verdict or ""):
            return verdict
        if self.is_promoted:
            return "passed"
        if self.verdict is None and self.state in TERMINAL and not self.has_model:
            return "not_asked"
        return "pending"

    @property
    def is_usable(self) -> bool:
        """Whether the model answers requests, or would after a deployment where the job asked for none."""
        is_gated = self.gate == "passed" and self.is_promoted is not False
        return self.state == "succeeded" and is_gated and (self.is_deployed or not self.auto_deploy)

    @property
    def problem(self) -> str | None:
        """Code of what keeps a succeeded job's model from use; None where nothing does or nothing is known."""
        if self.state != "succeeded" or self.is_usable:
            return None
        if self.is_trial and self.gate in ("not_asked", "pending"):
            return None
        if not self.has_model:
            return "no_model"
        if self.gate in ("failed", "inconclusive"):
            return f"gate_{self.gate}"
        return "not_deployed" if self.is_promoted else "not_promoted"


class OfStep(Protocol):
    @property
    def step(self) -> int: ...


OfStepT = TypeVar("OfStepT", bound=OfStep)


def steps_to_show(steps: Sequence[OfStepT], num_steps: int | None, *, every: int | None = 1) -> list[OfStepT]:
    """One for each percent of the job, so that a timeline stays readable; all where its length is not known.

    every: steps from one of them to the next; None: so many that all may be shown.
    """
    if num_steps is None or every is None or num_steps <= SHOWN_STEPS * every:
        return list(steps)
    return [
        each
        for each in steps
        if each.step * SHOWN_STEPS // num_steps > (each.step - every) * SHOWN_STEPS // num_steps
    ]


def seconds_left(newest: Sequence[Step], *, num_left: int) -> float | None:
    """Estimate the seconds left from the recorded steps, newest first; None before an attempt has two of them."""
    steps = [step for step in newest if step.attempt == newest[0].attempt]
    if len(steps) < 2:
        return None
    end, begin = (datetime.fromisoformat(str(step.metrics["time"])) for step in (steps[0], steps[-1]))
    return max(0.0, (end - begin).total_seconds()) / (len(steps) - 1) * max(0, num_left)


def expected_end(job: Job) -> datetime | None:
    """Return when its training will end: by the pace of its newest steps, before the first one by when it will start
    and how long it will take; None where that is not known. The gate comes after it."""
    if job.newest_steps and job.num_steps:
        left = seconds_left(job.newest_steps, num_left=job.num_steps - job.last_step)
        newest = datetime.fromisoformat(str(job.newest_steps[0].metrics["time"]))
        return None if left is None else newest + timedelta(seconds=left)
    start = job.queue_entry.estimated_start if job.queue_entry else None
    if start is None or job.attempt or not job.estimated_times:
        return None
    return start + timedelta(seconds=max(each.seconds.expected for each in job.estimated_times))


@dataclass(frozen=True)
class BaseModel:
    name: str
    base_sha: str
    has_template: bool = True
    """Whether conversations can be written for it; it completes prompts where not."""


@dataclass(frozen=True)
class Trained:
    """What a job trained, which another one may start from."""

    start_from: StartFrom
    base: BaseModel
    """The base model that it was trained on, whose name still points to the same files."""
    recipe: Recipe
    """The recipe by which it was trained."""


@dataclass(frozen=True)
class Inputs:
    """What a request names, looked up for its tenant. A file that is not there is None."""

    base: BaseModel | None
    files: Mapping[str, StoredFile | None]
    trained: Trained | None = None
    """What `model` names where it names no base model."""

    def file(self, file_id: str, *, param: str) -> StoredFile:
        stored_file = self.files.get(file_id)
        if stored_file is None:
            raise Refused("file_not_found", f"{param}: file {file_id!r} does not exist", param=param)
        if stored_file.purpose == RESULTS_PURPOSE:
            message = f"{param}: file {file_id!r} has purpose {stored_file.purpose!r}, expected 'fine-tune'"
            raise Refused("wrong_purpose", message, param=param)
        return stored_file

    def require_base(self, name: str) -> BaseModel:
        if self.base is None:
            message = f"model: base model {name!r} is not registered; GET /v1/models lists what is"
            raise Refused("model_not_found", message, param="model")
        return self.base


def job_command(
    request: CreateJob,
    inputs: Inputs,
    *,
    tenant: str,
    tier: Tier,
    job_id: str,
    dataset_ids: Sequence[str],
) -> SubmitJob:
    """Raises Refused naming the parameter at fault. `dataset_ids`: of the stages, in their order."""
    _refuse_unavailable(request)
    base = inputs.require_base(request.model)
    recipe = _recipe(request, inputs.trained)
    training = inputs.file(request.training_file, param="training_file")
    _require_format(training, recipe, base, param="training_file")
    extensions = request.retune
    spec = JobSpec(
        base_model=base.name,
        base_sha=base.base_sha,
        start_from=inputs.trained and inputs.trained.start_from,
        recipe=recipe,
        resources=extensions.resources,
        gate=extensions.gate,
        training_file=training.ref,
        validation_file=_optional(inputs, request.validation_file, "validation_file"),
        later_stages=_later_stages(request, inputs, recipe, base),
        holdout=_optional(inputs, extensions.holdout_file, "retune.holdout_file"),
        suffix=request.suffix or "",
        auto_deploy=extensions.auto_deploy,
        alerts=extensions.alerts,
        max_cost=extensions.max_cost,
        allow_ungated=extensions.allow_ungated,
        tier=tier,
        metadata=request.metadata or {},
    )
    if refusal := check(spec):
        raise Refused(refusal.code, refusal.message, param=f"retune.{refusal.param}")
    if inputs.trained and (refusal := check_start(recipe, inputs.trained.recipe, request.model)):
        raise Refused(refusal.code, f"retune.{refusal.message}", param=f"retune.{refusal.param}")
    _require_askable(request, inputs, spec)
    first, *later = dataset_ids
    return SubmitJob(
        job_id=job_id, tenant=tenant, dataset_id=first, later_dataset_ids=tuple(later), spec=spec
    )


def _later_stages(
    request: CreateJob, inputs: Inputs, first: Recipe, base: BaseModel
) -> tuple[StageSpec, ...]:
    stages = []
    for index, choice in enumerate(request.retune.later_stages):
        prefix = f"retune.later_stages[{index}]"
        recipe = _with_adapter_of(first, choice.recipe)
        training = inputs.file(choice.training_file, param=f"{prefix}.training_file")
        _require_format(training, recipe, base, param=f"{prefix}.training_file")
        validation = _optional(inputs, choice.validation_file, f"{prefix}.validation_file")
        stages.append(StageSpec(recipe=recipe, training_file=training.ref, validation_file=validation))
    return tuple(stages)


def dataset_commands(
    request: CreateJob, inputs: Inputs, *, tenant: str, dataset_ids: Sequence[str]
) -> list[SubmitDataset]:
    """One for each stage, in their order: all are compared with the holdout. Raises Refused."""
    first, *later = dataset_ids
    commands = [dataset_command(request, inputs, tenant=tenant, dataset_id=first)]
    for index, (choice, dataset_id) in enumerate(zip(request.retune.later_stages, later, strict=True)):
        prefix = f"retune.later_stages[{index}]."
        spec = _dataset_spec(choice, request, inputs, files=prefix, prefix=prefix)
        commands.append(SubmitDataset(dataset_id=dataset_id, tenant=tenant, spec=spec))
    return commands


def dataset_command(
    request: CreateJob | CreateDataset, inputs: Inputs, *, tenant: str, dataset_id: str
) -> SubmitDataset:
    """Return the command for the dataset of the first stage, or of the only one. Raises Refused."""
    own = request.retune
    if isinstance(request, CreateDataset) and own.later_stages:
        message = "retune.later_stages: a dataset is of one stage. Nearest that works: one request for each"
        raise Refused("stages_of_a_dataset", message, param="retune.later_stages")
    recipe = _recipe(request, None) if isinstance(request, CreateJob) else own.recipe
    first = StageChoice(
        recipe=recipe,
        training_file=request.training_file,
        validation_file=request.validation_file,
        policy=own.policy,
        safety_mix=own.safety_mix,
    )
    spec = _dataset_spec(first, request, inputs, files="", prefix="retune.")
    return SubmitDataset(dataset_id=dataset_id, tenant=tenant, spec=spec)


def _dataset_spec(
    choice: StageChoice, request: CreateJob | CreateDataset, inputs: Inputs, *, files: str, prefix: str
) -> DatasetSpec:
    """files, prefix: where the request has the stage's files and the rest of it."""
    base = inputs.require_base(request.model)
    training = inputs.file(choice.training_file, param=f"{files}training_file")
    _require_format(training, choice.recipe, base, param=f"{files}training_file")
    if refusal := operators_only(choice.policy):
        raise Refused(refusal.code, f"{prefix}{refusal.message}", param=f"{prefix}{refusal.param}")
    mix = None
    if asked := choice.safety_mix:
        file = inputs.file(asked.file, param=f"{prefix}safety_mix.file")
        mix = SafetyMix(file=file.ref, share=asked.share)
    return DatasetSpec(
        base_model=base.name,
        base_sha=base.base_sha,
        training_file=training.ref,
        validation_file=_optional(inputs, choice.validation_file, f"{files}validation_file"),
        holdout=_optional(inputs, request.retune.holdout_file, "retune.holdout_file"),
        safety_mix=mix,
        policy=choice.policy,
        method=choice.recipe.method,
    )


PARAMS = {"holdout": "retune.holdout_file"}
"""Names that fields of JobSpec have in a request, where they differ."""


def refuse_final(obstacles: Iterable[Obstacle]) -> None:
    """Raises Refused for the first one that nothing can remove."""
    for each in obstacles:
        if each.is_final:
            param = PARAMS.get(each.param, f"retune.{each.param}")
            raise Refused(each.code, each.message, param=param)


def operators_only(policy: DatasetPolicy) -> Refusal | None:
    """Why a tenant may not have its rows checked like that: the gate would be asked what was trained on."""
    strictest = DatasetPolicy()
    if policy.contamination == "keep":
        problem, expected = "contamination: found 'keep'", "'drop' or 'reject_file'"
        return Refusal(
            "operators_only", f"policy.{problem}, expected {expected}: {WHY_NOT}", "policy.contamination"
        )
    if policy.contamination_ratio > strictest.contamination_ratio:
        problem = f"contamination_ratio: found {policy.contamination_ratio}"
        expected = f"at most {strictest.contamination_ratio}"
        message = f"policy.{problem}, expected {expected}: {WHY_NOT}"
        return Refusal("operators_only", message, "policy.contamination_ratio")
    return None


def file_ids(request: CreateJob | CreateDataset) -> list[str]:
    extensions = request.retune
    named = [request.training_file, request.validation_file, extensions.holdout_file]
    for stage in extensions.later_stages:
        named += [stage.training_file, stage.validation_file]
    mixes = (extensions.safety_mix, *(stage.safety_mix for stage in extensions.later_stages))
    named += [mix.file for mix in mixes if mix]
    return [file_id for file_id in named if file_id]


def _refuse_unavailable(request: CreateJob) -> None:
    if request.integrations:
        raise Refused("not_available_yet", f"integrations {NOT_AVAILABLE}", param="integrations")
    if request.method:
        _refuse_contradictions(request.method, request.retune.recipe)


METHODS_OF_TYPE: Mapping[str, tuple[Method, ...]] = {
    "supervised": (Method.LORA, Method.SFT, Method.QLORA),
    "dpo": (Method.DPO,),
}
"""What `retune.recipe.method` may say beside OpenAI's `method.type`."""


def _refuse_contradictions(choice: MethodChoice, recipe: Recipe) -> None:
    methods = METHODS_OF_TYPE.get(choice.type)
    if methods is None:
        message = f"method.type {choice.type!r} {NOT_AVAILABLE}, expected 'supervised' or 'dpo'"
        raise Refused("not_available_yet", message, param="method.type")
    for name in ("supervised", "dpo", "reinforcement"):
        if name != choice.type and getattr(choice, name) is not None:
            message = f"method.{name} would be ignored, since method.type is {choice.type!r}: leave it out, "
            raise Refused("method_twice", f"{message}or give type {name!r}", param=f"method.{name}")
    if "method" in recipe.model_fields_set and recipe.method not in methods:
        message = (
            f"method.type {choice.type!r} contradicts retune.recipe.method {recipe.method.value!r}: leave method "
            "out, and give its hyperparameters in hyperparameters or retune.recipe"
        )
        raise Refused("method_twice", message, param="method.type")


def _recipe(request: CreateJob, trained: Trained | None) -> Recipe:
    """The recipe with OpenAI's dials over it; theirs win where they are set. An adapter that is trained on keeps what
    the request does not name of it.
    """
    recipe = request.retune.recipe.model_dump()
    dials = request.hyperparameters or Hyperparameters()
    if request.method and request.method.supervised:
        dials = request.method.supervised.hyperparameters
    if request.method and request.method.type == "dpo":
        recipe["method"] = Method.DPO
        if request.method.dpo:
            dials = request.method.dpo.hyperparameters
            if request.method.dpo.hyperparameters.beta != "auto":
                asked = {"beta": request.method.dpo.hyperparameters.beta}
                recipe["dpo"] = (recipe["dpo"] or {}) | asked
    theirs = {
        "num_epochs": dials.n_epochs,
        "batch_size": dials.batch_size,
        "learning_rate_multiplier": dials.learning_rate_multiplier,
        "seed": "auto" if request.seed is None else request.seed,
    }
    chosen: dict[str, object] = {name: value for name, value in theirs.items() if value != "auto"}
    resolved = Recipe.model_validate(recipe | chosen)
    if trained is None:
        return resolved
    unset = resolved.model_copy(update={"lora": request.retune.recipe.lora})
    return _with_adapter_of(trained.recipe, unset)


def _with_adapter_of(trained: Recipe, recipe: Recipe) -> Recipe:
    """An adapter that is trained on keeps what the recipe does not name of it."""
    if recipe.kind != "adapter" or trained.kind != "adapter":
        return recipe
    own = trained.lora.model_dump(exclude={"dropout"})
    asked = recipe.lora.model_dump(exclude_unset=True)
    return recipe.model_copy(update={"lora": LoraSpec.model_validate(own | asked)})


def _require_format(file: StoredFile, recipe: Recipe, base: BaseModel, *, param: str) -> None:
    if file.format is DatasetFormat.CHAT and not base.has_template:
        problem = f"{param}: file {file.ref.file_id!r} has format 'chat'"
        message = (
            f"{problem}, base model {base.name!r} has no chat template: bring rows of prompt and completion"
        )
        raise Refused("wrong_format", message, param=param)
    expected = FORMATS_OF_METHOD[recipe.method]
    if file.format is not None and file.format not in expected:
        names = " or ".join(sorted(expected))
        message = f"{param}: file {file.ref.file_id!r} has format {file.format.value!r}, "
        message += f"method {recipe.method.value!r} expects {names}"
        raise Refused("wrong_format", message, param=param)


def _require_askable(request: CreateJob, inputs: Inputs, spec: JobSpec) -> None:
    """The holdout's format, where it is known, is one that the gate can ask of what the last stage has trained."""
    if request.retune.holdout_file is None:
        return
    param = "retune.holdout_file"
    file = inputs.file(request.retune.holdout_file, param=param)
    method = spec.by_stage[-1].recipe.method
    expected = holdout_formats(method)
    if file.format is not None and file.format not in expected:
        message = f"{param}: file {file.ref.file_id!r} has format {file.format.value!r}, after method "
        message += f"{method.value!r} the gate asks {' or '.join(sorted(expected))}"
        raise Refused("wrong_format", message, param=param)
    if file.format is DatasetFormat.TEXT and (refusal := check_holdout_of_texts(spec.gate)):
        raise Refused(refusal.code, f"retune.{refusal.message}", param=f"retune.{refusal.param}")


def _optional(inputs: Inputs, file_id: str | None, param: str) -> FileRef | None:
    return inputs.file(file_id, param=param).ref if file_id else None
