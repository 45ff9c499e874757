"""Location of the assistant's turns in a text whose template does not mark them.

A turn begins where the prompt for its answer ends, with the text that the template writes to ask for the answer. It
ends where the text ends when the conversation stops after the turn, its end-of-turn token included. Both are read off
texts of the same template, so they hold for unknown templates. Some templates write a turn that is not the last in
another way than they ask for it: without the thinking block, or with another end. The places are then found by
changing the turn's own words and comparing the texts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from shared.chat.conversation import BadMessage, ChatMessage, Conversation
from shared.strict_json import cut

Render = Callable[[Conversation, bool], str]
"""A function that returns a conversation's text, followed by the prompt for an answer if its flag is True."""
SpanOf = tuple[int, int]
"""A span as start and end in characters."""
STAND_INS = range(0xE000, 0xF900)
"""Private-use characters, which no template writes: one that the row lacks replaces the words of a turn."""


@dataclass(frozen=True, slots=True)
class Templated:
    """A conversation with its text as rendered by the template."""

    conversation: Conversation
    text: str
    specials: tuple[SpanOf, ...]
    """The special tokens that the template wrote, in order."""
    render: Render


def assistant_spans(given: Templated) -> tuple[SpanOf | None, ...]:
    """Return a span for each assistant turn, in order; None for an untrained one without a call or a clear place.

    Raises BadMessage if a trained turn is not in one place as a whole.
    """
    spans: list[SpanOf | None] = []
    for number, message in enumerate(given.conversation.messages):
        if message.role == "assistant":
            behind = max((each[1] for each in spans if each), default=0)
            find = _span if message.is_trained else _span_of_history
            spans.append(find(given, number, behind))
    return tuple(spans)


def regions(spans: tuple[SpanOf | None, ...], length: int) -> tuple[SpanOf, ...]:
    """Return the spans, with each None replaced by all the text between its neighbours."""
    filled = []
    for number, span in enumerate(spans):
        behind = max((each[1] for each in spans[:number] if each), default=0)
        before = min((each[0] for each in spans[number:] if each), default=length)
        filled.append(span or (behind, before))
    return tuple(filled)


def prompt_of(given: Templated, number: int) -> str:
    """Return the prompt that a model gets when it is asked for the message with this number."""
    asked = replace(given.conversation, messages=given.conversation.messages[:number])
    return given.render(asked, True)


def _span(given: Templated, number: int, behind: int) -> SpanOf:
    message = given.conversation.messages[number]
    start = _start(given, number)
    end = _without_space_behind_end(given, start, _end(given, number, start))
    if not behind <= start < end:
        raise _unclear(message, given.text[end:start])
    _require_whole(given, number, start, end)
    return start, end


def _span_of_history(given: Templated, number: int, behind: int) -> SpanOf | None:
    """Return the span of an untrained turn, or None if it has no calls, which alone matter, or no clear place."""
    if not given.conversation.messages[number].tool_calls:
        return None
    try:
        return _span(given, number, behind)
    except BadMessage:
        return None


def _start(given: Templated, number: int) -> int:
    prompt = prompt_of(given, number)
    if given.text.startswith(prompt):
        return len(prompt)
    return _first_word(given, number, given.conversation, given.text)


def _end(given: Templated, number: int, start: int) -> int:
    messages = given.conversation.messages
    if number == len(messages) - 1:
        return len(given.text)
    stopped = replace(given.conversation, messages=messages[: number + 1])
    alone = given.render(stopped, False)
    if given.text.startswith(alone):
        return len(alone)
    # Before its first word the turn may have a thinking block in one text and none in the other.
    here = max(start, _first_word(given, number, given.conversation, given.text))
    there = _first_word(given, number, stopped, alone)
    return _behind_end_of_turn(given, here + num_common(given.text[here:], alone[there:]))


def _first_word(given: Templated, number: int, conversation: Conversation, text: str) -> int:
    """Return where the turn's words begin, which is where the text changes with them. Raises BadMessage."""
    message = conversation.messages[number]
    stand_in = next((char for char in map(chr, STAND_INS) if char not in text), None)
    if stand_in is None:
        raise _unclear(message, "")
    changed = replace(message, content=stand_in)
    messages = (*conversation.messages[:number], changed, *conversation.messages[number + 1 :])
    other = given.render(replace(conversation, messages=messages), False)
    if stand_in not in other:
        raise _unclear(message, "")
    return num_common(text, other)


def _behind_end_of_turn(given: Templated, position: int) -> int:
    """Return the end of the turn; from `position` on, its text is not what it would be if the turn were the last.

    `position` is at the end-of-turn token or behind it.
    """
    for start, end in given.specials:
        if start < position < end:
            position = start
        if start >= position:
            before = given.text[:position].rstrip()
            is_behind_one = any(len(before) == other_end for _, other_end in given.specials)
            is_next = not given.text[position:start].strip()
            return end if is_next and not is_behind_one else position
    return position


def _without_space_behind_end(given: Templated, start: int, end: int) -> int:
    """Return the end without line ends behind the end-of-turn token: no answer continues after that token."""
    bare = start + len(given.text[start:end].rstrip())
    return bare if any(special_end == bare for _, special_end in given.specials) else end


def _require_whole(given: Templated, number: int, start: int, end: int) -> None:
    """Raise BadMessage if more than white space of the turn's words is missing from the span."""
    message = given.conversation.messages[number]
    words = _visible(message.content)
    if words in _visible(given.text[start:end]):
        return
    # The prompt may hold the answer's first words, as those that open a thinking block.
    before = replace(given.conversation, messages=given.conversation.messages[:number])
    start = min(start, num_common(given.text, given.render(before, False)))
    if words not in _visible(given.text[start:end]):
        raise _unclear(message, given.text[start:end])


def _visible(text: str) -> str:
    return re.sub(r"\s+", "", text)


def num_common(one: str, other: str) -> int:
    """Return the length of the longest common prefix, in characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _unclear(message: ChatMessage, rendered: str) -> BadMessage:
    return BadMessage(
        "template.answer",
        message.field,
        f"the base model's template makes {cut(repr(rendered))} of it, expected all of it in one place",
    )
