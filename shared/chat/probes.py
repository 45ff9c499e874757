"""Comparison of a training template with the one that a model is served with, on conversations of each kind."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.base import Value
from schemas.layout import TRAINING_TEMPLATE
from shared.chat.conversation import BadMessage, ChatMessage, Conversation, Tool, ToolCall
from shared.chat.encoding import EndTokens
from shared.chat.loading import BadTokenizer, load_tokenizer
from shared.chat.rendering import Renderer, is_marked
from shared.chat.special import SpecialTokens
from shared.chat.tokenizer import ChatTokenizer
from shared.processes.orders import Messages


class BadTemplate(ValueError):
    """The template cannot replace, in training, the one that the model is served with."""


class Comparison(Value):
    problem: str | None
    """Why the template cannot replace the other."""


def _turns(*turns: tuple[str, str]) -> Conversation:
    return Conversation(
        tuple(
            ChatMessage(role, text, f"messages[{index}].content") for index, (role, text) in enumerate(turns)
        )
    )


def _tool() -> Tool:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": "find_time", "description": "The time in a city.", "parameters": parameters},
    }


def _with_tools() -> Conversation:
    asked, called, answered = _turns(
        ("user", "What time is it?"), ("assistant", ""), ("assistant", "It is noon.")
    ).messages
    call = ToolCall("find_time", {"city": "Oslo"}, "call00001")
    result = ChatMessage("tool", "noon", "messages[2].content", tool_call_id=call.id)
    return Conversation((asked, replace(called, tool_calls=(call,)), result, answered), (_tool(),))


PROBES: dict[str, Conversation] = {
    "one turn": _turns(("user", "Name a colour."), ("assistant", "Blue.")),
    "several turns": _turns(
        ("user", "Name a colour."),
        ("assistant", "Blue."),
        ("user", "Another one?"),
        ("assistant", "Green."),
        ("user", "And a third?"),
        ("assistant", "Red."),
    ),
    "system": _turns(("system", "Be brief."), ("user", "Name a colour."), ("assistant", "Blue.")),
    "code": _turns(
        ("user", "Write {{ x }} in Python."),
        ("assistant", '```python\ndef f(x):\n\n    return {"x": x}  # <b>, {% if %}\n```'),
    ),
    "unicode": _turns(("user", "Größe? 你好"), ("assistant", "Schön, 再见 🎉")),
    "white space": _turns(
        ("user", "  Name a colour.\n\n"), ("assistant", "\tBlue.\n\n  Green.  \n"), ("user", " "), ("assistant", "?")
    ),
    "reasoning": _turns(
        ("user", "Name a colour."), ("assistant", "<think>\nThe sky is blue.\n</think>\n\nBlue.")
    ),
    "tools": _with_tools(),
}  # fmt: skip
"""One conversation for each kind of row."""
KINDS = ("one turn", "several turns", "system", "reasoning", "tools")
"""Kinds of conversations in which templates differ, for people."""


def require_same_text(tokenizer: Any, training_template: str) -> None:
    """Raise BadTemplate unless the training template marks the texts that the tokenizer's own template makes."""
    if not is_marked(training_template):
        raise BadTemplate("no {% generation %} block, expected one around what the assistant says")
    special = SpecialTokens(tokenizer)
    own, marked = Renderer(tokenizer, special), Renderer(tokenizer, special, training_template)
    for kind, conversation in PROBES.items():
        if not _takes(own, conversation):
            continue
        try:
            marked.render(conversation)
        except BadMessage as problem:
            raise BadTemplate(f"{kind}: {problem.found}") from problem


def _takes(own: Renderer, conversation: Conversation) -> bool:
    """Return whether the model can have such rows: its own template neither refuses them nor leaves out tools."""
    try:
        own.render(conversation)
    except BadMessage as problem:
        return problem.rule not in ("template.render", "template.tools")
    return True


def problems(
    tokenizer: Any, ends: frozenset[int], training_template: str | None = None
) -> dict[str, BadMessage]:
    """Return, for each kind of row that a model could not learn to answer, the first reason.

    `ends` are ids of the tokens at which the served model stops.
    """
    chat, end_tokens = ChatTokenizer(tokenizer, training_template), EndTokens(tokenizer, ends)
    results = {kind: _problem(chat, end_tokens, conversation) for kind, conversation in PROBES.items()}
    return {kind: problem for kind, problem in results.items() if problem is not None}


def _problem(chat: ChatTokenizer, ends: EndTokens, conversation: Conversation) -> BadMessage | None:
    """Encode the conversation as ingest does a row, and return the first problem."""
    try:
        rendering = chat.renderer.with_boundary(conversation, chat.renderer.render(conversation))
    except BadMessage as problem:
        return problem
    (marked,) = chat.encoder.conversations([rendering])
    if isinstance(marked, BadMessage):
        return marked
    return ends.problem(marked, conversation.messages[-1].field)


def main(directory: Path) -> None:
    """Compare the training template in a base model's directory with its own."""
    messages = Messages()
    try:
        require_same_text(load_tokenizer(directory), (directory / TRAINING_TEMPLATE).read_text())
    except (BadTemplate, BadTokenizer) as error:
        messages.send(Comparison(problem=str(error)))
    else:
        messages.send(Comparison(problem=None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
