"""A tokenizer with its template, which encodes both conversations and plain texts."""

from typing import Any, TypeVar

from shared.chat.conversation import BadMessage, Conversation
from shared.chat.encoding import Marked, TokenEncoder
from shared.chat.rendering import Renderer
from shared.chat.special import SpecialTokens

Result = TypeVar("Result", Marked, list[int])


class ChatTokenizer:
    """An encoder on `tokenizer`, one of transformers' fast tokenizers. Every method raises BadMessage.

    `training_template` marks the answers in place of the tokenizer's own template, in the same texts.
    """

    def __init__(self, tokenizer: Any, training_template: str | None = None) -> None:
        special = SpecialTokens(tokenizer)
        self._tokenizer = tokenizer
        self.renderer = Renderer(tokenizer, special, training_template)
        self.encoder = TokenEncoder(tokenizer, special)

    @property
    def has_template(self) -> bool:
        """Whether there is a template; a model without one only completes prompts and can read no conversation."""
        return bool(self._tokenizer.chat_template)

    def marked(self, conversation: Conversation) -> Marked:
        """Encode the whole conversation, with its answers marked."""
        return self._marked(conversation, add_generation_prompt=False)

    def prompt(self, asked: Conversation) -> list[int]:
        """Encode the conversation and the prompt up to where the answer begins."""
        return self._marked(asked, add_generation_prompt=True).ids

    def opening(self, text: str) -> list[int]:
        """Encode a prompt that is completed as it is, with the tokenizer's start and without its end."""
        (result,) = self.encoder.openings([text])
        return _good(result)

    def completion(self, text: str) -> list[int]:
        """Encode the text that follows an opening, with the end of text behind it."""
        (result,) = self.encoder.completions([text])
        return _good(result)

    def document(self, text: str) -> list[int]:
        """Encode a text that is complete alone, from the tokenizer's start to the end of text."""
        (result,) = self.encoder.documents([text])
        return _good(result)

    def _marked(self, conversation: Conversation, *, add_generation_prompt: bool) -> Marked:
        rendering = self.renderer.render(conversation, add_generation_prompt=add_generation_prompt)
        (result,) = self.encoder.conversations([rendering])
        return _good(result)


def _good(result: Result | BadMessage) -> Result:
    if isinstance(result, BadMessage):
        raise result
    return result
