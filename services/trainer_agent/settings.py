"""Environment of the trainer_agent's control side; the runner has its own."""

from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings
from shared.tls import require_https


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TRAINER_AGENT_", frozen=True)

    nodes_s3_endpoint: str = ""
    """Address at which nodes of attempts reach S3. Empty: `s3_endpoint`."""

    def model_post_init(self, _: object) -> None:
        require_https(self.tls.ca_file, TRAINER_AGENT_NODES_S3_ENDPOINT=self.nodes_s3_endpoint)
