"""Rendering of conversations by a model's own chat template and tokenizer, with the answers marked."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shared.chat.conversation import BadMessage, Conversation, Tool, ToolCall
from shared.chat.spans import Templated, assistant_spans, num_common, prompt_of, regions
from shared.chat.special import PRIVATE, Guard, NotSeparable, SpecialTokens
from shared.strict_json import cut

GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
PROBE = "What?"
"""A message that any template shows if it can show a string."""
SHOWN_CHARACTERS = 24
"""Number of characters shown of a text on either side of a difference."""

TEMPLATE_DATE = datetime(2024, 7, 26, tzinfo=UTC)
"""The date that `strftime_now` formats in every template, so that equal rows make equal tokens on any day.

Llama 3.1's template falls back to this day if no date is given.
"""
# Templates are foreign programs: adding text to None is a TypeError, a missing key a LookupError.
TEMPLATE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Rendering:
    text: str
    answers: tuple[tuple[int, int], ...]
    """Spans of the assistant's text in characters, (start, end), from the template's generation blocks or derived."""
    guarded: str | None = None
    """The text with private characters where the row's own text looks like a special token; None if none does."""
    boundary: int | None = None
    """Character at which the prompt for the last answer ends and which no token may span; None if one may."""
    is_derived: bool = False
    """Whether `answers` has only the trained turns; a template's own blocks are of every turn."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The properties of a template on which its use depends."""

    is_marked: bool
    wants_parts: bool
    """Whether content must be a list of parts, as for models of images; such a template leaves out a string."""


def is_marked(template: str) -> bool:
    """Return whether the template itself marks the assistant's text."""
    return bool(GENERATION_MARKER.search(template))


class Renderer:
    """A renderer with the template of `tokenizer`, which is one of transformers' fast tokenizers.

    `training_template` marks the answers in texts that must be those of the tokenizer's own template.
    """

    def __init__(self, tokenizer: Any, special: SpecialTokens, training_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._training_template = training_template
        self._forms: dict[str, _Form] = {}

    def render(self, conversation: Conversation, *, add_generation_prompt: bool = False) -> Rendering:
        """Render the conversation. Raises BadMessage if the template cannot show all of it."""
        rendering = self._guarded(conversation, add_generation_prompt)
        regions_of_calls = rendering.answers
        if not self._is_marked(conversation):
            # A prompt has no answer to learn: its calls may be anywhere.
            regions_of_calls = ((0, len(rendering.text)),)
            if not add_generation_prompt:
                spans = assistant_spans(self._templated(conversation, rendering))
                regions_of_calls = regions(spans, len(rendering.text))
                rendering = replace(rendering, answers=_trained(conversation, spans), is_derived=True)
        if conversation.uses_tools:
            _require_calls(conversation, rendering.text, regions_of_calls)
        if conversation.tools:
            self._require_tools(conversation, rendering, add_generation_prompt)
        return rendering

    def with_boundary(self, conversation: Conversation, rendering: Rendering) -> Rendering:
        """Return the rendering with the end of the prompt that the model gets when the last answer is asked for.

        Raises BadMessage if training has another text there: the model would never be asked what it learnt.
        """
        last = conversation.messages[-1]
        if not last.is_trained:
            return rendering
        prompt = prompt_of(self._templated(conversation, rendering), len(conversation.messages) - 1)
        position = num_common(rendering.text, prompt)
        start = next((start for start, end in rendering.answers if end > len(prompt)), len(rendering.text))
        if position < len(prompt) or start > position:
            raise _other_prompt(last.field, prompt, rendering.text[position:], num_known=position)
        # The first text of the row itself, such as a line end, may form one token with the text before it.
        is_own = rendering.text.startswith(last.content[:SHOWN_CHARACTERS], position)
        return replace(rendering, boundary=None if is_own else position)

    def plain(self, conversation: Conversation, *, add_generation_prompt: bool = False) -> str:
        """Return the text, whatever it shows of the conversation, or the reason if the template refuses it."""
        try:
            return self._rendered(conversation, add_generation_prompt).text
        except BadMessage as refusal:
            return refusal.found

    def _is_marked(self, conversation: Conversation) -> bool:
        return self._training_template is not None or self._form(self._template(conversation)).is_marked

    def _template(self, conversation: Conversation) -> str:
        if not self._tokenizer.chat_template:
            raise BadMessage("template.missing", "messages", "the base model has no chat template")
        return str(self._tokenizer.get_chat_template(tools=list(conversation.tools) or None))

    def _templated(self, conversation: Conversation, rendering: Rendering) -> Templated:
        written = self._special.pattern.finditer(rendering.guarded or rendering.text)
        specials = tuple(match.span() for match in written)
        return Templated(conversation, rendering.text, specials, self._text)

    def _text(self, conversation: Conversation, add_generation_prompt: bool) -> str:
        return self._rendered(conversation, add_generation_prompt).text

    def _rendered(self, conversation: Conversation, add_generation_prompt: bool) -> Rendering:
        template = self._template(conversation)
        messages = [message.for_template() for message in conversation.messages]
        if self._form(template).wants_parts:
            messages = [message | {"content": _parts(message["content"])} for message in messages]
        tools = list(conversation.tools) or None
        released = self._applied(template, messages, tools=tools, add_generation_prompt=add_generation_prompt)
        if self._training_template is None or add_generation_prompt:
            return released
        marked = self._applied(self._training_template, messages, tools=tools)
        if marked.text != released.text:
            raise _other_text(marked.text, released.text)
        return marked

    def _form(self, template: str) -> "_Form":
        if template not in self._forms:
            self._forms[template] = _Form(is_marked(template), self._wants_parts(template))
        return self._forms[template]

    def _wants_parts(self, template: str) -> bool:
        if PROBE in self._of_one(template, PROBE):
            return False
        text = self._of_one(template, _parts(PROBE))
        # A template that writes out any value has not read the parts.
        return PROBE in text and repr(PROBE) not in text

    def _of_one(self, template: str, content: Any) -> str:
        try:
            return self._applied(template, [{"role": "user", "content": content}]).text
        except BadMessage:
            return ""

    def _applied(
        self,
        template: str,
        messages: list[dict[str, Any]],
        *,
        tools: list[Tool] | None = None,
        add_generation_prompt: bool = False,
    ) -> Rendering:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            (text,), answers = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=template,
                return_assistant_tokens_mask=is_marked(template),
                add_generation_prompt=add_generation_prompt,
                **self._tokenizer.special_tokens_map | {"strftime_now": TEMPLATE_DATE.strftime},
            )
        except (TemplateError, *TEMPLATE_ERRORS) as error:
            raise BadMessage("template.render", "messages", cut(str(error))) from None
        return Rendering(text, tuple(answers[0]) if answers else ())

    def _guarded(self, conversation: Conversation, add_generation_prompt: bool) -> Rendering:
        plain = self._rendered(conversation, add_generation_prompt)
        guard = Guard(self._special)
        try:
            guarded = conversation.with_texts(guard)
            if not guard.found_any:
                return plain
            return self._apart(plain, guard, self._rendered(guarded, add_generation_prompt))
        except NotSeparable as error:
            raise BadMessage("text.special_token", "messages", str(error)) from None

    def _apart(self, plain: Rendering, guard: Guard, rendered: Rendering) -> Rendering:
        if PRIVATE.search(plain.text):
            raise NotSeparable("a special token beside characters for private use")
        if (guard.restore(rendered.text), rendered.answers) != (plain.text, plain.answers):
            raise NotSeparable("the template changes it")
        return Rendering(plain.text, plain.answers, rendered.text)

    def _require_tools(
        self, conversation: Conversation, rendering: Rendering, add_generation_prompt: bool
    ) -> None:
        """Raise BadMessage if the text is the same without the definitions or lacks the name of a tool."""
        try:
            without = self._rendered(replace(conversation, tools=()), add_generation_prompt).text
        except BadMessage:
            without = None
        for tool in conversation.tools:
            name = tool["function"]["name"]
            if without == rendering.text or name not in rendering.text:
                raise _left_out(f"the definition of {name}", "tools")


def _trained(
    conversation: Conversation, spans: tuple[tuple[int, int] | None, ...]
) -> tuple[tuple[int, int], ...]:
    turns = [message for message in conversation.messages if message.role == "assistant"]
    return tuple(span for span, turn in zip(spans, turns, strict=True) if span and turn.is_trained)


def _other_prompt(field: str, prompt: str, trained: str, *, num_known: int) -> BadMessage:
    """Return the problem that the prompt for the last answer differs from the text before the answer in training."""
    expected = repr(prompt[num_known:][:SHOWN_CHARACTERS]) if prompt[num_known:] else "the answer"
    return BadMessage(
        "template.generation_prompt",
        field,
        f"behind {prompt[:num_known][-SHOWN_CHARACTERS:]!r} {trained[:SHOWN_CHARACTERS]!r}, "
        f"expected {expected} as where the answer is asked for",
    )


def _other_text(trained: str, released: str) -> BadMessage:
    position = num_common(trained, released)
    written, expected = (repr(text[position : position + SHOWN_CHARACTERS]) for text in (trained, released))
    return BadMessage(
        "template.training",
        "messages",
        f"the training template writes {written} at character {position}, expected {expected} as the model's own",
    )


def _parts(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


def _require_calls(conversation: Conversation, text: str, spans: tuple[tuple[int, int], ...]) -> None:
    """Raise BadMessage unless each call occurs, in order, in the trained spans, and each result in the text."""
    answers = [text[start:end] for start, end in spans]
    at = (0, 0)
    for message in conversation.messages:
        for index, call in enumerate(message.tool_calls):
            path = f"{message.field.removesuffix('.content')}.tool_calls[{index}].function"
            at = _after_call(call, path, answers, at)
        is_needed = message.tool_calls or message.role == "tool"
        if is_needed and not _stands_in(message.content.strip(), text):
            raise _left_out(f"the text of the {message.role} message", message.field)


def _after_call(call: ToolCall, path: str, answers: list[str], at: tuple[int, int]) -> tuple[int, int]:
    """Return the position behind the call's name, as (answer, character). Raises BadMessage if a part is missing."""
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
    """Yield the texts that must occur for the value not to be lost: its strings, keys and numbers."""
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
    """Return whether the text occurs, unchanged or as escaped in JSON."""
    forms = (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1])
    return any(form in rendered for form in forms)


def _left_out(what: str, field: str) -> BadMessage:
    return BadMessage("template.tools", field, cut(f"the base model's template leaves out {what}"))
