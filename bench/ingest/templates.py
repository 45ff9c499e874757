"""What models can be trained on with their released chat templates: the table of docs/chat-templates.md.

The templates are those that TRL carries, each with a small tokenizer that has its special tokens. What is trained is
compared with the answers as they are written down here, and against the blocks of TRL's own marked templates.

    python -m bench.ingest.templates            # prints the table
"""

from dataclasses import dataclass, replace
from typing import Any

from shared.chat.conversation import BadMessage, Conversation
from shared.chat.probes import KINDS, PROBES, problems
from shared.chat.rendering import Renderer, Rendering, is_marked
from shared.chat.special import SpecialTokens
from shared.chat.tokenizer import ChatTokenizer
from tests.unit.shared.chat.tokenizers import released_names, template, with_template


@dataclass(frozen=True)
class Written:
    """What stands around the words of an answer in what the model is trained on, as its maker means it."""

    end: str
    before: str = ""
    earlier_end: str | None = None
    """Of a turn that is not the last; None: the same."""
    earlier_before: str | None = None
    stops: tuple[str, ...] = ()
    """Tokens that the model stops at when it is served, where `end` is not all of them."""


IM_END = Written("<|im_end|>")
TURN = Written("<turn|>", stops=("<turn|>", "<|tool_response>"))
EOT_ID = Written("<|eot_id|>")
SENTENCE = Written("<｜end▁of▁sentence｜>")
THINKS = Written("<|im_end|>", before="\n</think>\n\n", earlier_before="")
UTTERANCE = Written("<end_of_utterance>", before=" ")
PHI = Written("<|end|>\n</s>", earlier_end="<|end|>", stops=("<|end|>", "</s>"))

WRITTEN = {
    "cohere": Written("<|END_OF_TURN_TOKEN|>"),
    "cohere2": Written("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", stops=("<|END_OF_TURN_TOKEN|>",)),
    "deepseek_r1_distill": SENTENCE,
    "deepseekv3": SENTENCE,
    "diffusion_gemma": TURN,
    "gemma": Written("<end_of_turn>"),
    "gemma3": Written("<end_of_turn>"),
    **dict.fromkeys(("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"), TURN),
    "glm4moe": Written("", before="\n<think></think>\n", stops=("<|user|>", "<|observation|>")),
    "gptoss": Written(
        "<|return|>",
        before="<|channel|>final<|message|>",
        earlier_end="<|end|>",
        stops=("<|return|>", "<|call|>"),
    ),
    "idefics3": UTTERANCE,
    **dict.fromkeys(("lfm2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2"), IM_END),
    **dict.fromkeys(("llama3", "llama3_1", "llama3_2"), EOT_ID),
    "llava_next": Written("</s>", before=" "),
    "muse_glimmer": Written("<|eot|>", before=" to=user<|message|>"),
    **dict.fromkeys(
        ("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"), IM_END
    ),
    "phi3": PHI,
    "phi3_5": PHI,
    **dict.fromkeys(("qwen2_5", "qwen2_5_vl", "qwen3_instruct_2507", "qwen3_vl"), IM_END),
    "qwen3": Written("<|im_end|>", before="<think>\n\n</think>\n\n", earlier_before=""),
    "qwen3_5_nothink": IM_END,
    "qwen3_5_think": THINKS,
    "qwen3_6": THINKS,
    "qwen3_8": replace(THINKS, earlier_before=None),
    "smolvlm": UTTERANCE,
}


@dataclass(frozen=True)
class Verdict:
    name: str
    marks: str
    """`own` where the template itself marks answers, else `derived`."""
    is_exact: bool
    """One turn and several turns: the tokens are the released template's, the targets the answers with their end."""
    twin: str
    """Held against TRL's marked template; `none` where there is none."""
    trains: dict[str, str]
    """Per kind of row `yes`, or the rule by which it is refused."""


def verdict(name: str) -> Verdict:
    tokenizer = tokenizer_for(name)
    problem_of_kind = problems(tokenizer, stops(name, tokenizer))
    return Verdict(
        name=name,
        marks="own" if is_marked(tokenizer.chat_template) else "derived",
        is_exact=all(targets(name, kind) == expected(name, kind) for kind in ("one turn", "several turns")),
        twin=against_twin(name),
        trains={kind: problem_of_kind[kind].rule if kind in problem_of_kind else "yes" for kind in KINDS},
    )


def tokenizer_for(name: str) -> Any:
    return with_template(template(f"{name}.jinja"))


def stops(name: str, tokenizer: Any) -> frozenset[int]:
    written = WRITTEN[name]
    return frozenset(tokenizer.convert_tokens_to_ids(list(written.stops or (written.end,))))


def targets(name: str, kind: str) -> list[str]:
    """The texts that the targets stand for, a text for each run of them, without white space behind it."""
    tokenizer = tokenizer_for(name)
    marked = ChatTokenizer(tokenizer).marked(PROBES[kind])
    runs: list[list[int]] = [[]]
    for token, is_target in zip(marked.ids, marked.mask, strict=True):
        if is_target:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run).rstrip() for run in runs if run]


def expected(name: str, kind: str) -> list[str]:
    """The answers as `WRITTEN` has them; without an end of turn nothing is what it should be."""
    written = WRITTEN[name]
    if not written.end:
        return []
    *earlier, last = [each.content for each in PROBES[kind].messages if each.role == "assistant"]
    before = written.before if written.earlier_before is None else written.earlier_before
    end = written.end if written.earlier_end is None else written.earlier_end
    return [f"{before}{text}{end}" for text in earlier] + [f"{written.before}{last}{written.end}"]


def against_twin(name: str) -> str:
    """Whether TRL's marked template marks the same answers in every probe that both can show.

    White space behind a turn aside, and what stands directly before one: its blocks begin within what the prompt for
    the answer already says, or behind what the model has to write first because the prompt does not say it.
    """
    try:
        twin = with_template(template(f"{name}_training.jinja"))
    except FileNotFoundError:
        return "none"
    pairs = {kind: _pair(tokenizer_for(name), twin, probe) for kind, probe in PROBES.items()}
    shown = {kind: pair for kind, pair in pairs.items() if pair is not None}
    other = [kind for kind, (ours, theirs) in shown.items() if ours.text != theirs.text]
    unlike = [kind for kind in shown if kind not in other and not _marks_alike(*shown[kind])]
    if len(other) == len(shown):
        return "other text"
    differences = (
        *(f"; other marks: {kind}" for kind in unlike),
        *(f"; other text: {kind}" for kind in other),
    )
    return "".join(("equal", *differences))


def _pair(tokenizer: Any, twin: Any, probe: Conversation) -> tuple[Rendering, Rendering] | None:
    try:
        ours, theirs = (Renderer(each, SpecialTokens(each)).render(probe) for each in (tokenizer, twin))
    except BadMessage:
        return None
    return ours, theirs


def _marks_alike(ours: Rendering, theirs: Rendering) -> bool:
    marked = [
        {index for start, end in each.answers for index in range(start, end)} for each in (ours, theirs)
    ]
    starts = {start for start, _ in (*ours.answers, *theirs.answers)}
    apart = sorted(marked[0] ^ marked[1], reverse=True)
    for position in apart:
        if position + 1 in starts:
            starts.add(position)
    return all(position in starts or ours.text[position].isspace() for position in apart)


def line(row: Verdict) -> str:
    """A line of the table."""
    kinds = [row.trains[kind].removeprefix("template.") for kind in KINDS]
    return _cells(row.name, row.marks, "yes" if row.is_exact else "no", row.twin, *kinds)


def table() -> str:
    rows = [verdict(name) for name in released_names()]
    head = _cells("template", "marks", "exact", "TRL's marks", *KINDS)
    counts = [sum(row.is_exact for row in rows)]
    counts += [sum(row.trains[kind] == "yes" for row in rows) for kind in KINDS]
    last = _cells(f"**of {len(rows)}**", "", str(counts[0]), "", *map(str, counts[1:]))
    return "\n".join([head, _cells(*["---"] * (4 + len(KINDS))), *map(line, rows), last])


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table())
