"""Where a base model comes from: a hub's repository at a pinned commit."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Literal, Protocol

from pydantic import SecretStr

from services.registry.clients.folders import is_kept
from services.registry.decide.base_models import BadBaseModel
from shared.errors import Unavailable
from shared.model_files.models import MODEL_SUFFIXES

MOMENTARY = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)})
"""Answers that are about the hub, and not about what was asked for."""


class Hub(Protocol):
    def sizes(self, repository: str, commit: str) -> Mapping[str, int]:
        """Return the bytes of each file that `download` would fetch. Blocks. Raises HubUnavailable."""

    def download(self, repository: str, commit: str, into: Path) -> None:
        """Fetch the files that a base model is made of. Blocks. Raises HubUnavailable."""


class HubUnavailable(Unavailable):
    """The hub did not answer, or answered with a server error or that it has no time."""

    dependency = "the model hub"


class HuggingFaceHub:
    """Files are fetched by the commit alone: a branch or tag may point elsewhere tomorrow."""

    def __init__(self, endpoint: str | None = None, token: SecretStr | None = None) -> None:
        self._endpoint = endpoint
        self._token = token

    def sizes(self, repository: str, commit: str) -> Mapping[str, int]:
        from huggingface_hub import HfApi

        hub = HfApi(endpoint=self._endpoint, token=self._secret)
        with _hub_absence(repository):
            files = hub.model_info(repository, revision=commit, files_metadata=True).siblings or ()
        sizes = {file.rfilename: file.size for file in files if is_kept(file.rfilename)}
        known = {name: size for name, size in sizes.items() if size is not None}
        if unknown := sorted(sizes.keys() - known.keys()):
            raise BadBaseModel(f"{', '.join(unknown)} in {repository}@{commit}: the hub names no size")
        return known

    def download(self, repository: str, commit: str, into: Path) -> None:
        from huggingface_hub import snapshot_download

        with _hub_absence(repository):
            snapshot_download(
                repository,
                revision=commit,
                local_dir=into,
                allow_patterns=[f"*{suffix}" for suffix in sorted(MODEL_SUFFIXES)],
                # Some repositories keep a second, unconverted copy of the weights in a folder.
                ignore_patterns=["*/*"],
                endpoint=self._endpoint,
                token=self._secret,
            )

    @property
    def _secret(self) -> str | Literal[False]:
        """The token for the hub; False without one: not even one that somebody logged in with here is sent."""
        return self._token.get_secret_value() if self._token else False


@contextmanager
def _hub_absence(repository: str) -> Iterator[None]:
    """Raise HubUnavailable where an error says nothing about the repository."""
    try:
        yield
    except Exception as error:
        if _is_away(error):
            raise HubUnavailable(f"{repository}: {error}") from error
        raise


def _is_away(error: BaseException | None) -> bool:
    """Return whether the hub or the line failed, often as the cause of an error about a file not in a cache."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in MOMENTARY
    is_of_line = isinstance(error, httpx2.TransportError)
    return error is not None and (is_of_line or _is_away(error.__cause__))
