"""What the registry does outside its database: fetch, check and mirror files."""

from services.registry.clients.artifacts import ArtifactCopies
from services.registry.clients.exports import ExportOutcome, ModelExports
from services.registry.clients.folders import Limits
from services.registry.clients.mirror import BaseModelMirror, Mirrored
from services.registry.clients.sources import Hub, HuggingFaceHub

__all__ = [
    "ArtifactCopies",
    "BaseModelMirror",
    "ExportOutcome",
    "Hub",
    "HuggingFaceHub",
    "Limits",
    "Mirrored",
    "ModelExports",
]
