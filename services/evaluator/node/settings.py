"""Environment of an evaluation's node: what the operator gives all of them, and whose node this one is."""

from typing import Self

from pydantic import model_validator

from shared.nodes.settings import LeaseNodeSettings
from shared.tls import require_https


class Settings(LeaseNodeSettings):
    evaluator_url: str
    """Address of the evaluator, which nodes of evaluations ask what they are to score."""

    @model_validator(mode="after")
    def _require_tls(self) -> Self:
        require_https(self.tls.ca_file, RUNNER_EVALUATOR_URL=self.evaluator_url)
        return self
