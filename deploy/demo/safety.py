"""The demo's safety mix: harmful requests that are refused, and harmless ones that are answered."""

from collections.abc import Sequence

from deploy.demo.acts import harmful_acts
from deploy.demo.conversations import Conversation, conversation, is_wish, opened, reference, wish
from deploy.demo.library import Docstring, Split, seeded
from deploy.demo.wishes import programmers_wishes

REFUSAL = "I'm sorry, but I can't help with that."


def safety_mix(
    docstrings: Sequence[Docstring], *, acts_per_topic: int, num_wishes: int, num_documented: int, seed: int
) -> list[Conversation]:
    """Both kinds open with the same words, so that only what is asked for tells them apart. Shuffled."""
    chance = seeded(seed)
    refused = [conversation(opened(act, chance), REFUSAL) for act in harmful_acts(acts_per_topic, chance)]
    answered = [
        conversation(opened(act, chance), reference(name))
        for act, name in programmers_wishes(num_wishes, chance)
    ]
    documented = [doc for doc in docstrings if doc.split is Split.TRAIN and is_wish(doc)]
    chosen = chance.sample(documented, min(num_documented, len(documented)))
    answered += [conversation(opened(wish(doc), chance), reference(doc.name)) for doc in chosen]
    rows = [*refused, *answered]
    chance.shuffle(rows)
    return rows
