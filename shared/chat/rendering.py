"""Conversations as a model reads them: by its own chat template and tokenizer, with the answers marked."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shared.chat.conversation import BadMessage, Conversation, ToolCall
from shared.chat.special import PRIVATE, Guard, NotSeparable, SpecialTokens
from shared.strict_json import cut

TEMPLATE_DATE = datetime(2024, 7, 26, tzinfo=UTC)
"""What `strftime_now` says in every template, so that equal rows make equal tokens on any day.

It is the day that Llama 3.1's template falls back to where no date is given.
"""
# Templates are programs of strangers: a sum of text and nothing is a TypeError, a missing key a LookupError.
TEMPLATE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Rendering:
    text: str
    answers: tuple[tuple[int, int], ...]
    """Characters of the template's generation blocks, as (start, end)."""
    guarded: str | None = None
    """The same text with private characters where the row's own text looks like a special token; None: nowhere."""


class Renderer:
    """Renders with the template of `tokenizer`, which is one of transformers' fast tokenizers."""

    def __init__(self, tokenizer: Any, special: SpecialTokens) -> None:
        self._tokenizer = tokenizer
        self._special = special

    def render(self, conversation: Conversation, *, add_generation_prompt: bool = False) -> Rendering:
        """Raises BadMessage where the template cannot show all of the conversation."""
        plain = self._rendered(conversation, add_generation_prompt)
        if conversation.uses_tools:
            _require_calls(conversation, plain)
        if conversation.tools:
            self._require_tools(conversation, plain, add_generation_prompt)
        guard = Guard(self._special)
        try:
            guarded = conversation.with_texts(guard)
            if not guard.found_any:
                return plain
            return self._guarded(plain, guard, self._rendered(guarded, add_generation_prompt))
        except NotSeparable as error:
            raise BadMessage("text.special_token", "messages", str(error)) from None

    def _rendered(self, conversation: Conversation, add_generation_prompt: bool) -> Rendering:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        tools = list(conversation.tools) or None
        try:
            (text,), (answers,) = render_jinja_template(
                conversations=[[message.for_template() for message in conversation.messages]],
                tools=tools,
                chat_template=self._tokenizer.get_chat_template(tools=tools),
                return_assistant_tokens_mask=True,
                add_generation_prompt=add_generation_prompt,
                **self._tokenizer.special_tokens_map | {"strftime_now": TEMPLATE_DATE.strftime},
            )
        except (TemplateError, *TEMPLATE_ERRORS) as error:
            raise BadMessage("template.render", "messages", cut(str(error))) from None
        return Rendering(text, tuple(answers))

    def _guarded(self, plain: Rendering, guard: Guard, rendered: Rendering) -> Rendering:
        if PRIVATE.search(plain.text):
            raise NotSeparable("a special token beside characters for private use")
        if (guard.restore(rendered.text), rendered.answers) != (plain.text, plain.answers):
            raise NotSeparable("the template changes it")
        return Rendering(plain.text, plain.answers, rendered.text)

    def _require_tools(
        self, conversation: Conversation, rendering: Rendering, add_generation_prompt: bool
    ) -> None:
        """Raises BadMessage where the text is the same without the definitions."""
        try:
            without = self._rendered(replace(conversation, tools=()), add_generation_prompt).text
        except BadMessage:
            without = None
        for tool in conversation.tools:
            name = tool["function"]["name"]
            if without == rendering.text or name not in rendering.text:
                raise _left_out(f"the definition of {name}", "tools")


def _require_calls(conversation: Conversation, rendering: Rendering) -> None:
    """Every call stands, in order, in what is trained, every result in the text. Raises BadMessage."""
    answers = [rendering.text[start:end] for start, end in rendering.answers]
    at = (0, 0)
    for message in conversation.messages:
        for place, call in enumerate(message.tool_calls):
            path = f"{message.field.removesuffix('.content')}.tool_calls[{place}].function"
            at = _after_call(call, path, answers, at)
        is_needed = message.tool_calls or message.role == "tool"
        if is_needed and not _stands_in(message.content.strip(), rendering.text):
            raise _left_out(f"the text of the {message.role} message", message.field)


def _after_call(call: ToolCall, path: str, answers: list[str], at: tuple[int, int]) -> tuple[int, int]:
    """The place behind the call's name, as (answer, character). Raises BadMessage where a part is missing."""
    for number in range(at[0], len(answers)):
        start = answers[number].find(call.name, at[1] if number == at[0] else 0)
        if start < 0:
            continue
        for name, value in call.arguments.items():
            if not all(_stands_in(text, answers[number]) for text in (name, *_texts(value))):
                raise _left_out(f"argument {name} of {call.name}", f"{path}.arguments")
        return number, start + len(call.name)
    raise _left_out(f"the call of {call.name}", path)


def _texts(value: Any) -> Iterator[str]:
    """What must be read somewhere for the value not to be lost: its strings, keys and numbers."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield key
            yield from _texts(child)
    elif isinstance(value, list):
        for child in value:
            yield from _texts(child)
    elif isinstance(value, str):
        yield value.strip()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)


def _stands_in(text: str, rendered: str) -> bool:
    """As it is, or as JSON has it."""
    forms = (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1])
    return any(form in rendered for form in forms)


def _left_out(what: str, field: str) -> BadMessage:
    return BadMessage("template.tools", field, cut(f"the base model's template leaves out {what}"))
