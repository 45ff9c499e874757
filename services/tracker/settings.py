"""Typed environment of the tracker."""

from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TRACKER_", frozen=True)

    mlflow_url: str = ""
    """Address of an MLflow tracking server, in which each job is then a run. Empty: jobs are not mirrored."""
    mlflow_username: str = ""
    mlflow_password: SecretStr = SecretStr("")
    mlflow_token: SecretStr = SecretStr("")
    """Bearer token, for servers that take one in place of a name and password."""
    mlflow_experiment_prefix: str = "retune/"
    """Runs of a tenant are in the experiment of this and its name."""
