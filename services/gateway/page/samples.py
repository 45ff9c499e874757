"""A few rows of each kind of training file, to be looked at and tried. Pure."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from schemas.specification import DatasetFormat

Row = Mapping[str, JsonValue]


def _chat(question: str, answer: str) -> Row:
    roles = (("system", "Answer in one sentence."), ("user", question), ("assistant", answer))
    return {"messages": [{"role": role, "content": content} for role, content in roles]}


ROWS: Mapping[DatasetFormat, Sequence[Row]] = {
    DatasetFormat.CHAT: (
        _chat(
            "How do I reset my password?", "Choose Forgot password on the login page and follow the e-mail."
        ),
        _chat(
            "Can I change my plan later?", "Yes, at any time, and the new price counts from the next month."
        ),
        _chat("Where are my invoices?", "They are listed under Billing, newest first."),
    ),
    DatasetFormat.PROMPT_COMPLETION: (
        {"prompt": "Category of: The parcel never came.", "completion": "delivery"},
        {"prompt": "Category of: I was charged twice.", "completion": "billing"},
        {"prompt": "Category of: The app does not start.", "completion": "technical"},
    ),
    DatasetFormat.PREFERENCE: (
        {
            "prompt": "Can I return a used product?",
            "chosen": "Within 30 days, yes, if it works as it did when it was new.",
            "rejected": "No idea.",
        },
        {
            "prompt": "Is there a discount for schools?",
            "chosen": "Yes, 20 %; write to us from an address of the school.",
            "rejected": "Maybe there is one, maybe there is none.",
        },
        {
            "prompt": "Do you ship to Norway?",
            "chosen": "Yes, within five working days.",
            "rejected": "Norway is a country in northern Europe.",
        },
    ),
    DatasetFormat.TEXT: (
        {"text": "A pump moves a fluid by mechanical action, most often with a motor."},
        {"text": "Before the filter is changed, the valve is closed and the pressure is let out."},
        {"text": "The manual lists the parts that wear, with the hours after which each is looked at."},
    ),
}


def as_file(kind: DatasetFormat) -> str:
    """Return JSON lines."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS[kind])
