"""Typed environment of the evaluator."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from schemas.evaluation import CheckName
from schemas.gate import MAX_ANSWER_TOKENS
from services.evaluator.decide.engines import AnswersBy
from services.evaluator.gates.sizes import MIN_CONSISTENT_PAIRS
from shared.cores import usable_cores
from shared.device import Device
from shared.device_leases.holder import DeviceLeases
from shared.settings import NodeServiceSettings


class Settings(NodeServiceSettings):
    model_config = SettingsConfigDict(env_prefix="EVALUATOR_", frozen=True)

    scratch_dir: Path
    """Directory of the cache of models and files, and of the scoring child's work directories."""
    scratch_bytes: PositiveInt = 200 * 1024**3
    """Size of the cache in bytes; the longest unused goes first."""
    required_checks: frozenset[CheckName] = frozenset({"benchmark", "safety", "over_refusal"})
    """Checks without which no model passes, whether or not something is registered for them."""
    device: Device = "cpu"
    pool: Annotated[str, Field(min_length=1)] | None = None
    """Pool of the provisioner's machine of which scoring leases its device, or several of one machine where the model
    needs them by the pool's `device_memory_gib`; None: it takes the first that this machine has."""
    on_nodes: bool = False
    """Score on nodes of `pool`, which is of another backend than the provisioner's machine. Else scoring is a process
    of this machine, and so must the devices of `pool` be. Nobody but that process answers then: `answers_by` is
    ignored."""
    device_name: str = ""
    """Product name of the devices on which is scored, as `nvidia-smi --query-gpu=name` has it; what is measured on
    another product is not compared. Empty: that of this machine's device; with `on_nodes` it must be named."""
    lease_term: Annotated[timedelta, Field(ge=timedelta(seconds=10))] = timedelta(minutes=5)
    """How long scoring outlives the last lease of its devices that was confirmed; it is extended five times within
    it."""
    scoring_threads: PositiveInt | None = None
    """Number of threads of the scoring child; None leaves it to its libraries."""
    gates: PositiveInt | None = None
    """Number of gates at once; None: as many as there are cores for `scoring_threads`, one if those are None or on a
    GPU."""
    scoring_attempts: PositiveInt = 3
    """Number of times that a crashed scoring is started before the evaluation is inconclusive."""
    scoring_silence: timedelta = timedelta(minutes=15)
    """A scoring child that reports nothing for so long is ended."""
    scoring_limit: timedelta = timedelta(hours=4)
    batch_tokens: PositiveInt = 16_384
    """Most tokens of one forward pass, padding and answers to come included: what memory allows."""
    max_tokens: PositiveInt = 4096
    max_answer_tokens: PositiveInt = MAX_ANSWER_TOKENS
    """Most tokens of an answer to a row of a job's holdout, whatever the job asks for."""
    max_new_tokens: PositiveInt = 256
    """Most tokens of an answer to a safety prompt; a refusal that ends later is none that anyone can be sure of."""

    answers_by: AnswersBy = "auto"
    """Who answers. `auto`: a replica of the base model where one is ready on a GPU, else the scoring child. Or always
    one of them, as far as there is a replica."""
    replica_keys_dir: Path | None = None
    """Directory with a file per replica, the key of its API; without it no replica is asked. Never part of an
    event."""
    replica_concurrency: PositiveInt = 16
    """Number of answers that a replica is asked for at once; tenants' requests need their share of it."""
    replica_wait: timedelta = timedelta(minutes=1)
    """How long a replica may take to load the candidate."""
    replica_timeout: timedelta = timedelta(minutes=2)
    """How long one answer of a replica may take."""
    replica_limit: timedelta = timedelta(minutes=30)
    """How long all answers of an evaluation may take, and how long its candidate stays loaded at most."""

    judge_urls: tuple[str, ...] = ()
    """OpenAI-compatible endpoints that a job's gate may name. Prompts and the key go to no other."""
    judge_api_key: SecretStr | None = None
    """Key of the only judge there is; several judges have theirs in `judge_api_keys`, by URL."""
    judge_api_keys: dict[str, SecretStr] = Field(default_factory=dict)
    judge_timeout: timedelta = timedelta(seconds=60)
    judge_attempts: PositiveInt = 4
    """Number of times that a question is asked until its answer is usable."""
    judge_concurrency: PositiveInt = 8
    judge_pairs: Annotated[int, Field(ge=MIN_CONSISTENT_PAIRS)] = 200
    """Number of holdout rows that are judged; more are not."""
    refusal_judge_url: str | None = None
    """URL of a model that classifies refusals instead of the built-in phrases."""
    refusal_judge_model: str | None = None
    refusal_judge_shape: Literal["auto", "words", "llama_guard"] = "auto"
    """How that model answers: REFUSED or COMPLIED, or `safe` or `unsafe` like Llama Guard. `auto` goes by its
    name."""

    @model_validator(mode="after")
    def _requires_what_nodes_need(self) -> Self:
        needed = {"pool": self.pool, "device_name": self.device_name}
        missing = [name for name, value in needed.items() if not value]
        if self.on_nodes and missing:
            raise ValueError(f"{missing[0]}: found nothing, expected a name because on_nodes is set")
        return self

    @model_validator(mode="after")
    def _names_judge_and_model(self) -> Self:
        if (self.refusal_judge_url is None) != (self.refusal_judge_model is None):
            raise ValueError("refusal_judge_url and refusal_judge_model must be given together")
        return self

    @model_validator(mode="after")
    def _sends_each_key_to_one_judge(self) -> Self:
        judges = {*self.judge_urls, *([self.refusal_judge_url] if self.refusal_judge_url else [])}
        if self.judge_api_key is not None and len(judges) > 1:
            raise ValueError(
                f"judge_api_key is for one judge, found {len(judges)}: name theirs in judge_api_keys, by URL"
            )
        return self

    @property
    def leases(self) -> DeviceLeases | None:
        if self.pool is None:
            return None
        return DeviceLeases(
            pool=self.pool, devices=1, purpose="scoring", term=self.lease_term, has_nodes=self.on_nodes
        )

    @property
    def gates_at_once(self) -> int:
        if self.gates is not None:
            return self.gates
        if self.device != "cpu" or self.scoring_threads is None:
            return 1
        return max(1, usable_cores() // self.scoring_threads)

    def judge_key(self, url: str) -> str | None:
        key = self.judge_api_keys.get(url, self.judge_api_key)
        return key.get_secret_value() if key else None
