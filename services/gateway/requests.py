"""Bodies of requests. Unknown fields are refused by name; everything ours is under `retune`."""

from typing import Annotated, Any, Literal, TypeGuard

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from schemas.specification import (
    Auto,
    DatasetPolicy,
    GateSpec,
    Recipe,
    Resources,
    Share,
    Spec,
)

NOT_AVAILABLE = "is not available yet"
MAX_CHOICES = 8
MAX_PROMPTS = 16
MAX_STOPS = 4
MAX_TOKENS = 2**20
MAX_LOGPROBS = 20
"""What a replica computes at most for a token."""

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]


def _not_yet(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("not_available_yet", "this option is not available yet")


class Hyperparameters(Spec):
    """The same bounds as in Recipe, under OpenAI's names."""

    batch_size: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    learning_rate_multiplier: PositiveFloat | Auto = "auto"
    n_epochs: Annotated[int, Field(ge=1, le=100)] | Auto = "auto"


class Supervised(Spec):
    hyperparameters: Hyperparameters = Hyperparameters()


class MethodChoice(Spec):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: dict[str, Any] | None = None
    reinforcement: dict[str, Any] | None = None


class SafetyMixChoice(Spec):
    file: str
    """Id of an uploaded file."""
    share: Share = 0.1


class Extensions(Spec):
    """What OpenAI's API has no word for."""

    recipe: Recipe = Recipe()
    resources: Resources = Resources()
    gate: GateSpec = GateSpec()
    policy: DatasetPolicy = DatasetPolicy()
    holdout_file: str | None = None
    safety_mix: SafetyMixChoice | None = None
    auto_deploy: bool = True
    allow_ungated: bool = False
    """Train although the gate has nothing to ask in a stage that it requires."""
    max_cost: Annotated[None, BeforeValidator(_not_yet)] = None


class CreateJob(Spec):
    model: str
    training_file: str
    validation_file: str | None = None
    suffix: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: Metadata | None = None
    integrations: list[dict[str, Any]] | None = None
    method: MethodChoice | None = None
    hyperparameters: Hyperparameters | None = None
    retune: Extensions = Extensions()


class CreateDataset(Spec):
    """Validate a file without starting a job."""

    model: str
    training_file: str
    validation_file: str | None = None
    retune: Extensions = Extensions()


class Deploy(Spec):
    slot: str | None = None
    """A short alias; None serves the version under its full name."""


class Promote(Spec):
    accept_without_holdout: bool = False
    reason: Annotated[str, Field(max_length=1000)] = ""


class CreateTenant(Spec):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
    tier: Literal["standard", "premium"] = "standard"


def _texts(value: object) -> object:
    """`stop`: one text or a few."""
    found = [value] if isinstance(value, str) else value
    if value is None or (_is_list_of(found, str) and len(found) <= MAX_STOPS):
        return value
    raise ValueError(f"expected text or a list of at most {MAX_STOPS} texts")


def _prompts(value: object) -> object:
    """`prompt`: a text, the ids of its tokens, or a list of either."""
    if isinstance(value, str) or _are_token_ids(value):
        return value
    items = value if isinstance(value, list) else []
    are_prompts = _is_list_of(items, str) or all(_are_token_ids(item) for item in items)
    if 0 < len(items) <= MAX_PROMPTS and are_prompts:
        return value
    raise ValueError(f"expected text, token ids, or a list of 1 to {MAX_PROMPTS} of either")


def _are_token_ids(value: object) -> bool:
    # vLLM looks for ids above the vocabulary, not for negative ones.
    return _is_list_of(value, int) and len(value) > 0 and min(value) >= 0 and max(value) < 2**31


def _is_list_of(value: object, kind: type) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and all(type(item) is kind for item in value)


def _text_parts(value: object) -> object:
    """`content`: text, or parts that are text. Other parts could make a replica fetch addresses."""
    parts = value if isinstance(value, list) else []
    if all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return value
    raise PydanticCustomError("not_available_yet", "only parts of type text are available")


TokenCount = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Label = Annotated[str, Field(max_length=512)]

UNASKED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""OpenAI's fields that are not available yet, with the values that ask for nothing."""


class Asked(BaseModel):
    """A part of an inference request. What no field names never reaches a replica."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="forbid")

    @field_validator(*UNASKED, mode="before", check_fields=False)
    @classmethod
    def _asks_for_nothing(cls, value: object, info: ValidationInfo) -> None:
        unasked = UNASKED[info.field_name or ""]
        if not any(type(value) is type(known) and value == known for known in unasked):
            _not_yet(value)


class TextPart(Asked):
    type: Literal["text"]
    text: str


class ChatMessage(Asked):
    """Fields of an answer that are sent back, such as `refusal`, are left out."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["developer", "system", "user", "assistant"]
    content: Annotated[str | list[TextPart] | None, BeforeValidator(_text_parts)]
    name: Annotated[str, Field(max_length=64)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None


class StreamOptions(Asked):
    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, Field(exclude=True)] = None


class Inference(Asked):
    """OpenAI's fields, and the few of vLLM that touch no other request of a shared replica.

    Options such as `prompt_logprobs` or `prompt_embeds` can end an engine that other tenants use as well.
    """

    model: Annotated[str, Field(min_length=1, max_length=512)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: (
        Annotated[
            dict[
                Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100.0, le=100.0)]
            ],
            Field(max_length=300),
        ]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[str | list[str] | None, BeforeValidator(_texts)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # vLLM's
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=2.0)] | None = None
    min_tokens: TokenCount | None = None
    # Taken, but of no use to a replica.
    user: Annotated[Label | None, Field(exclude=True)] = None
    safety_identifier: Annotated[Label | None, Field(exclude=True)] = None
    prompt_cache_key: Annotated[Label | None, Field(exclude=True)] = None
    prompt_cache_retention: Annotated[Label | None, Field(exclude=True)] = None
    service_tier: Annotated[Literal["auto", "default"] | None, Field(exclude=True)] = None
    metadata: Annotated[Metadata | None, Field(exclude=True)] = None
    parallel_tool_calls: Annotated[bool | None, Field(exclude=True)] = None


class ChatRequest(Inference):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    modalities: None = None
    moderation: None = None
    prediction: None = None
    response_format: None = None
    store: None = None
    tool_choice: None = None
    tools: None = None
    verbosity: None = None
    web_search_options: None = None


class CompletionRequest(Inference):
    prompt: Annotated[str | list[str] | list[int] | list[list[int]], BeforeValidator(_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: None = None
    echo: None = None
    suffix: None = None
