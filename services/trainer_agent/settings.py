"""Environment of the trainer_agent's control side; the runner has its own."""

from pydantic_settings import SettingsConfigDict

from shared.settings import NodeServiceSettings


class Settings(NodeServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TRAINER_AGENT_", frozen=True)
