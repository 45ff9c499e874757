"""Bodies of inference requests: what may reach a replica that other tenants share. All else is refused by name."""

import json
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from services.gateway.requests import Metadata, not_yet
from shared.nesting import TooDeep, require_shallow

MAX_CHOICES = 8
MAX_PROMPTS = 16
MAX_STOPS = 4
MAX_TOKENS = 2**20
MAX_TOOLS = 128
"""OpenAI's limit on the tools of a request and on the calls of a message."""
MAX_SCHEMA_CHARACTERS = 64 * 1024
"""Longest JSON schema that is taken: a replica makes a grammar of it."""
MAX_LOGPROBS = 20
"""What a replica computes at most for a token."""


def _texts(value: object) -> object:
    """`stop`: one text or a few."""
    texts = [value] if isinstance(value, str) else value
    if value is None or (_is_list_of(texts, str) and len(texts) <= MAX_STOPS):
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


def _schema(value: object) -> object:
    """A JSON schema, as far as the size of the grammar that it makes goes."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise ValueError(f"a schema of {len(text)} characters, expected at most {MAX_SCHEMA_CHARACTERS}")
    try:
        require_shallow(text)
    except TooDeep as error:
        raise ValueError(f"the schema is {error}") from error
    return value


TokenCount = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Label = Annotated[str, Field(max_length=512)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
JsonSchema = Annotated[dict[str, JsonValue], BeforeValidator(_schema)]

UNSUPPORTED_FIELDS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""OpenAI's fields that are not available yet, with the values that ask for nothing."""


class Asked(BaseModel):
    """A part of an inference request. What no field names never reaches a replica."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="forbid")

    @field_validator(*UNSUPPORTED_FIELDS, mode="before", check_fields=False)
    @classmethod
    def _asks_for_nothing(cls, value: object, info: ValidationInfo) -> None:
        neutral_values = UNSUPPORTED_FIELDS[info.field_name or ""]
        if not any(type(value) is type(known) and value == known for known in neutral_values):
            not_yet(value)


class TextPart(Asked):
    type: Literal["text"]
    text: str


class Function(Asked):
    name: FunctionName
    description: Annotated[str, Field(max_length=MAX_SCHEMA_CHARACTERS)] | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None


def _function(value: object) -> object:
    """`type` of a tool, a call or a choice. OpenAI has others, such as `custom`."""
    if isinstance(value, str) and value != "function":
        not_yet(value)
    return value


FunctionType = Annotated[Literal["function"], BeforeValidator(_function)]


class Tool(Asked):
    type: FunctionType
    function: Function


class CalledFunction(Asked):
    name: FunctionName
    arguments: str
    """JSON text, as the model wrote it: it need not be right."""


class ToolCall(Asked):
    """Clients send a call back as it came, of a stream with its `index`."""

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str, Field(min_length=1, max_length=512)]
    type: FunctionType
    function: CalledFunction


class NamedFunction(Asked):
    name: FunctionName


class NamedTool(Asked):
    type: FunctionType
    function: NamedFunction


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a-word")] | Annotated[NamedTool, Tag("a-function")],
    Discriminator(lambda value: "a-function" if isinstance(value, dict | NamedTool) else "a-word"),
]


class NamedSchema(Asked):
    name: FunctionName
    description: Annotated[str, Field(max_length=MAX_SCHEMA_CHARACTERS)] | None = None
    schema_: Annotated[JsonSchema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Asked):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[NamedSchema | None, Field(validate_default=True)] = None

    @field_validator("json_schema")
    @classmethod
    def _is_there_where_it_is_needed(cls, value: object, info: ValidationInfo) -> object:
        kind = info.data.get("type", "text")
        if (value is None) is (kind == "json_schema"):
            raise ValueError(f"expected {'a schema' if value is None else 'none'} with type {kind}")
        return value


class ChatMessage(Asked):
    """Fields of an answer that are sent back, such as `refusal`, are left out."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Annotated[
        str | list[TextPart] | None, BeforeValidator(_text_parts), Field(validate_default=True)
    ] = None
    name: Annotated[str, Field(max_length=64)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str | None, Field(max_length=512, validate_default=True)] = None
    audio: None = None
    function_call: None = None

    @field_validator("content")
    @classmethod
    def _is_left_out_by_the_assistant_alone(cls, value: object, info: ValidationInfo) -> object:
        if value is None and info.data.get("role", "assistant") != "assistant":
            raise PydanticCustomError("missing", "Field required")
        return value

    @field_validator("tool_calls")
    @classmethod
    def _are_the_assistants(cls, value: list[ToolCall] | None, info: ValidationInfo) -> list[ToolCall] | None:
        if value and info.data.get("role", "assistant") != "assistant":
            raise ValueError(f"found calls by role {info.data['role']}, expected role assistant")
        return value or None

    @field_validator("tool_call_id")
    @classmethod
    def _is_that_of_a_result(cls, value: str | None, info: ValidationInfo) -> str | None:
        is_result = info.data.get("role") == "tool"
        if is_result and value is None:
            raise PydanticCustomError("missing", "Field required")
        if value is not None and not is_result and "role" in info.data:
            raise ValueError(f"found with role {info.data['role']}, expected role tool")
        return value


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

    def body(self, served_name: str) -> dict[str, JsonValue]:
        """What a replica is sent."""
        return self.model_dump(exclude_none=True, by_alias=True) | {"model": served_name}


class ChatRequest(Inference):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    modalities: None = None
    moderation: None = None
    prediction: None = None
    store: None = None
    verbosity: None = None
    web_search_options: None = None

    @field_validator("tools")
    @classmethod
    def _are_some(cls, value: list[Tool] | None) -> list[Tool] | None:
        return value or None

    @field_validator("tool_choice")
    @classmethod
    def _is_of_the_tools(cls, value: object, info: ValidationInfo) -> object:
        """Check the choice against the tools; without tools `none` and `auto` ask for nothing."""
        tools = info.data.get("tools")
        if tools is None:
            if value in (None, "none", "auto") or "tools" not in info.data:
                return None
            raise ValueError("found without tools, expected tools to choose from")
        if isinstance(value, NamedTool) and value.function.name not in {tool.function.name for tool in tools}:
            raise ValueError(f"no tool is named {value.function.name}")
        return value


class CompletionRequest(Inference):
    prompt: Annotated[str | list[str] | list[int] | list[list[int]], BeforeValidator(_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: None = None
    echo: None = None
    suffix: None = None
