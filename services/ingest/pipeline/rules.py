"""Every rule that a row must keep: its id and how to fix a row that breaks it."""

from schemas.dataset import FileRole, RowProblem

RULES_VERSION = 5
"""Version of the rules, part of a version's id. Raised when a rule, a normalisation or the layout changes."""

FIXES: dict[str, str] = {
    "json.too_large": "split the row, or raise policy.max_row_bytes",
    "json.utf8": "save the file as UTF-8",
    "json.invalid": "write one complete JSON object on each line",
    "json.depth": "nest objects and lists at most 32 levels deep",
    "json.not_object": "make the line a JSON object, for example {'messages': [...]}",
    "json.duplicate_key": "keep one of the equal keys",
    "format.unknown": "use messages; prompt and completion; prompt, chosen and rejected; or text",
    "format.mixed": "give all rows of a file the same format, or upload two files",
    "field.missing": "add the field",
    "field.type": "write the field with the expected type",
    "field.empty": "write text that is not only white space, or remove the row",
    "text.surrogate": r"replace the lone surrogate \ud800-\udfff by the character that was meant",
    "text.special_token": "remove the special token: here it cannot be kept apart from those of the template",
    "chat.no_messages": "put at least one user and one assistant message into the list",
    "chat.message_type": "make each message an object with role and content",
    "chat.role_unknown": "use one of the roles system, developer, user, assistant, tool, function",
    "chat.system_first": "move the system or developer message to the front; only one is allowed",
    "chat.role_order": "put a user (or tool) turn before each assistant turn, and a tool turn only after one",
    "chat.part_type": "use parts of type text, in answers also refusal: images, audio and files cannot be trained on",
    "chat.refusal": "give either content or refusal, and null for the other",
    "chat.ends_with_assistant": "end the conversation with the assistant's answer, or remove the last turns",
    "chat.content_empty": "write the message's text, or remove the message",
    "chat.weight": "use the integer 0 or 1, on assistant messages only",
    "tools.shape": "write {'type': 'function', 'function': {...}}: name, description, parameters in a tool, "
    "name and arguments in a call",
    "tools.type": "use type function: other tools cannot be rendered by chat templates",
    "tools.name": "name the function with 1 to 64 letters, digits or _ . : / -",
    "tools.duplicate": "give each tool a name of its own",
    "tools.role": "put calls on assistant messages only",
    "tools.unknown_name": "add the function to tools, or correct the name of the call",
    "tools.arguments": "write the arguments as one JSON object, '{}' for none",
    "tools.id": "give each call of a message a text of its own as id, or none of them any",
    "tools.parallel": "call one function per message, or remove parallel_tool_calls: false",
    "tools.unanswered": "put one tool message for each call directly behind it",
    "tools.unasked": "name in tool_call_id a call of the assistant message directly before that has no answer yet",
    "preference.prompt_end": "end the prompt with a user or tool turn",
    "preference.one_answer": "give exactly one assistant message as the answer",
    "preference.call": "write the prompt as messages, with which the chat template writes calls",
    "preference.equal": "give two different answers, or remove the row",
    "template.render": "rewrite the row as the base model's chat template asks",
    "template.missing": "write the row as prompt and completion: the base model has no chat template",
    "template.answer": "give the answer weight 0 or a row of its own, or leave out what the template takes away",
    "template.training": "register the base model with a training template that writes what its own template writes",
    "template.generation_prompt": "write answers with the reasoning that the prompt opens, train a base model whose "
    "template asks for answers as it shows them, or use prompt and completion rows",
    "template.end_of_turn": "train a base model whose template ends an answer with a token that "
    "generation_config.json names as eos_token_id, or use prompt and completion rows",
    "template.tools": "use a base model whose chat template renders tools, or write tools and calls as text",
    "holdout.tool_call": "end the row with an answer in words: the gate compares text, a call is not compared yet",
    "tokens.no_eos": "write the prompt as messages: the tokenizer has no end-of-text token to end an answer with",
    "tokens.over_length": "shorten the row, raise policy.max_seq_length or set policy.truncation",
    "tokens.no_loss_token": "keep at least one assistant token with weight 1 within the window",
    "tokens.weight": "remove weight: the base model's template does not mark each assistant turn by itself",
}

HARD_RULES = frozenset({"template.generation_prompt", "template.end_of_turn"})
"""Rules that refuse the whole file when one row breaks them: the model would be asked otherwise than it was trained,
or never stop."""


class BadRow(Exception):
    """A row breaks a rule. `found` is the offending value or a sentence about it, already short."""

    def __init__(self, rule: str, field: str, found: str) -> None:
        assert rule in FIXES, f"rule {rule} is not in the table"
        super().__init__(f"{rule} at {field}: {found}")
        self.rule = rule
        self.field = field
        self.found = found

    def at(self, file: FileRole, line: int) -> RowProblem:
        return RowProblem(
            file=file, line=line, field=self.field, rule=self.rule, found=self.found, fix=FIXES[self.rule]
        )


class FileRefused(Exception):
    """The file as a whole cannot become a dataset. `code` is a stable word for machines."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
