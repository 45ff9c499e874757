"""Environment of the trainer_agent's control side; the runner has its own."""

from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TRAINER_AGENT_", frozen=True)
