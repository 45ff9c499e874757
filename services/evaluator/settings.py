"""Typed environment of the evaluator."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from schemas.evaluation import StageName
from schemas.specification import MAX_ANSWER_TOKENS
from services.evaluator.scoring.order import Device
from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="EVALUATOR_", frozen=True)

    scratch_dir: Path
    """Cache of models and files, and the scoring child's work directories."""
    scratch_bytes: PositiveInt = 200 * 1024**3
    """Of the cache; the longest unused goes first."""
    required_stages: frozenset[StageName] = frozenset({"benchmark", "safety"})
    """Stages without which no model passes, whether or not something is registered for them."""
    device: Device = "cpu"
    scoring_threads: PositiveInt | None = None
    """Threads of the scoring child; None leaves it to its libraries."""
    scoring_attempts: PositiveInt = 3
    """Times that a crashed scoring is started before the evaluation is inconclusive."""
    scoring_silence: timedelta = timedelta(minutes=15)
    """A scoring child that reports nothing for so long is ended."""
    scoring_limit: timedelta = timedelta(hours=4)
    batch_tokens: PositiveInt = 16_384
    """Tokens of one forward pass, padding and answers to come included: what memory allows."""
    max_tokens: PositiveInt = 4096
    max_new_tokens: PositiveInt = 128
    """Of an answer to a safety prompt."""
    max_answer_tokens: PositiveInt = MAX_ANSWER_TOKENS
    """Of an answer to a row of a job's holdout, whatever the job asks for."""
    max_rank: PositiveInt = 512

    judge_urls: tuple[str, ...] = ()
    """OpenAI-compatible endpoints that a job's gate may name. Prompts and the key go to no other."""
    judge_api_key: SecretStr | None = None
    judge_timeout: timedelta = timedelta(seconds=60)
    judge_attempts: PositiveInt = 4
    """Times that a question is asked until its answer is usable."""
    judge_concurrency: PositiveInt = 8
    judge_pairs: Annotated[int, Field(ge=20)] = 200
    """Holdout rows that are judged; more are not."""
    refusal_judge_url: str | None = None
    """Classifies refusals instead of the built-in phrases."""
    refusal_judge_model: str | None = None

    @model_validator(mode="after")
    def _names_judge_and_model(self) -> Self:
        if (self.refusal_judge_url is None) != (self.refusal_judge_model is None):
            raise ValueError("refusal_judge_url and refusal_judge_model must be given together")
        return self
