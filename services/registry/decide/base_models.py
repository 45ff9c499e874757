"""Which files make a base model, and what follows when a name points to other files. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from schemas.base import Message
from schemas.layout import TRAINING_TEMPLATE
from schemas.model import NO_TEMPLATE_SHA256, AdaptersStale, BaseModelRegistered
from services.registry.decide import slots
from services.registry.model import BaseModel, Slot
from shared.chat.rendering import is_marked
from shared.errors import Rejected
from shared.model_files.models import CONFIG, MODEL_SUFFIXES

TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TOKENIZERS = ("tokenizer.json", "tokenizer.model")

CODE_SUFFIXES = frozenset({".py", ".pyc", ".so", ".sh"})
OTHER_WEIGHT_SUFFIXES = frozenset(
    {
        ".bin",
        ".pt",
        ".pth",
        ".ckpt",
        ".pkl",
        ".pickle",
        ".joblib",
        ".h5",
        ".msgpack",
        ".onnx",
        ".gguf",
        ".npz",
    }
)
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


class BadBaseModel(Rejected):
    """The files are no base model that we serve and train; the sentence says what to change."""


def choose_files(names: Sequence[str]) -> tuple[str, ...]:
    """Return the files to mirror. Raises BadBaseModel on code, on other weight formats, and where one is missing."""
    for name in sorted(names):
        suffix = PurePath(name).suffix.lower()
        if suffix in CODE_SUFFIXES:
            raise BadBaseModel(
                f"{name}: a model with code of its own is not accepted, expected configuration alone"
            )
        if suffix in OTHER_WEIGHT_SUFFIXES:
            raise BadBaseModel(f"{name}: expected weights as .safetensors; remove or convert this file")
    kept = tuple(sorted(name for name in names if PurePath(name).suffix.lower() in MODEL_SUFFIXES))
    if CONFIG not in kept:
        raise BadBaseModel(f"{CONFIG} is missing; found {', '.join(kept) or 'nothing'}")
    if not any(name.endswith(".safetensors") for name in kept):
        raise BadBaseModel("no .safetensors file; expected the model's weights")
    if not any(name in kept for name in TOKENIZERS):
        raise BadBaseModel(f"no tokenizer; expected {' or '.join(TOKENIZERS)}")
    return kept


def context_tokens(config: Mapping[str, Any]) -> int:
    """Return how many tokens the model can attend to. Raises BadBaseModel."""
    nested = config.get("text_config")
    for source in (config, nested if isinstance(nested, dict) else {}):
        for field in CONTEXT_FIELDS:
            if type(source.get(field)) is int and source[field] > 0:
                return int(source[field])
    raise BadBaseModel(f"{CONFIG}: expected one of {', '.join(CONTEXT_FIELDS)} as a number above 0")


def template_sha256(template: bytes | None, tokenizer_config: Mapping[str, Any]) -> str:
    """Return sha256 of the chat template's text; NO_TEMPLATE_SHA256 where there is none. Raises BadBaseModel."""
    if template is None and tokenizer_config.get("chat_template") is None:
        return NO_TEMPLATE_SHA256
    text = template if template is not None else _configured_template(tokenizer_config)
    if not text.strip():
        raise BadBaseModel(f"{TEMPLATE}: the chat template is empty")
    return hashlib.sha256(text).hexdigest()


def training_sha256(template: bytes | None) -> str | None:
    """Return sha256 of the training template's text; None without one. Raises BadBaseModel where it marks nothing."""
    if template is None:
        return None
    try:
        text = template.decode()
    except UnicodeDecodeError as error:
        raise BadBaseModel(f"{TRAINING_TEMPLATE}: expected UTF-8, {error}") from error
    if not is_marked(text):
        raise BadBaseModel(
            f"{TRAINING_TEMPLATE}: no {{% generation %}} block, expected one around what the assistant says"
        )
    return hashlib.sha256(template).hexdigest()


def _configured_template(tokenizer_config: Mapping[str, Any]) -> bytes:
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise BadBaseModel(f"no chat template; expected {TEMPLATE} or chat_template in {TOKENIZER_CONFIG}")
    return template.encode()


@dataclass(frozen=True)
class Registration:
    events: tuple[Message, ...]
    stale_sha: str | None = None
    """Digest of the files that the name no longer points to; None where it pointed to no others."""


def register(new: BaseModel, previous: BaseModel | None) -> Registration:
    """Point the name to `new` from now on, and report adapters on other files as stale."""
    if previous is None or previous.base_sha == new.base_sha:
        return Registration((_registered(new),))
    stale = AdaptersStale(base_model=new.name, stale_sha=previous.base_sha, new_sha=new.base_sha)
    return Registration((stale, _registered(new)), previous.base_sha)


def withdraw(slot: Slot, base: BaseModel, stale_sha: str) -> slots.SlotDecision:
    """Withdraw the slot: it serves a version on files that the base model's name no longer points to."""
    reason = f"base model {base.name} changed from {stale_sha[:12]} to {base.base_sha[:12]}"
    return slots.withdraw(slot, reason=reason)


def _registered(base: BaseModel) -> BaseModelRegistered:
    return BaseModelRegistered(
        name=base.name,
        base_sha=base.base_sha,
        manifest_sha256=base.manifest_sha256,
        source=base.source,
        template_sha256=base.template_sha256,
        context_tokens=base.context_tokens,
        num_parameters=base.num_parameters,
        training_template_sha256=base.training_template_sha256,
        capabilities=base.capabilities,
    )
