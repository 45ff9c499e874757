"""Where a base model comes from: a hub's repository at a pinned commit."""

from pathlib import Path
from typing import Protocol

from services.registry.decide.base_models import KEPT_SUFFIXES


class Hub(Protocol):
    def download(self, repository: str, commit: str, into: Path) -> None:
        """Fetch the files that a base model is made of. Blocks."""


class HuggingFaceHub:
    """Files are fetched by the commit alone: a branch or tag may point elsewhere tomorrow."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint

    def download(self, repository: str, commit: str, into: Path) -> None:
        from huggingface_hub import snapshot_download

        snapshot_download(
            repository,
            revision=commit,
            local_dir=into,
            allow_patterns=[f"*{suffix}" for suffix in sorted(KEPT_SUFFIXES)],
            # Some repositories keep a second, unconverted copy of the weights in a folder.
            ignore_patterns=["*/*"],
            endpoint=self._endpoint,
        )
