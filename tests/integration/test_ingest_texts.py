"""Texts through the real pipeline: documents, and the general texts that are mixed in."""

import random

import numpy as np
from safetensors.numpy import load_file

from schemas.specification import Method
from tests.integration import test_ingest_pipeline
from tests.integration.test_ingest_pipeline import Bench, sentence

bench = test_ingest_pipeline.bench


async def test_texts_become_documents_with_a_share_of_general_ones(bench: Bench) -> None:
    """The first row is in the holdout, row 21 is longer than a window, the last one is empty."""
    rng = random.Random(5)
    texts = [sentence(rng, 30) for _ in range(20)] + [sentence(rng, 300), "</s>", " "]
    general, others = ([{"text": sentence(rng, 30)} for _ in range(count)] for count in (20, 4))
    outcome = await bench.run(
        [{"text": text} for text in texts],
        spec={"method": Method.CPT, "share": 0.25},
        holdout=[{"text": texts[0]}, *others[1:]],
        validation=others[:1],
        safety_mix=general,
        answer_tokens=3,
    )
    counts, examples = outcome.manifest.counts, outcome.examples()
    assert (counts.contaminated_rows, counts.rejected_rows, counts.validation_rows) == (1, 1, 1)
    assert (counts.holdout_rows, counts.holdout_texts, counts.long_answers) == (4, 4, 0)
    assert counts.rows == 21 + counts.safety_rows
    assert examples[2] == (f"{texts[1]}<|im_end|>",) * 2
    assert examples[22] == ("</s><|im_end|>",) * 2
    assert texts[20].endswith(examples[21][0].removesuffix("<|im_end|>"))
    part = load_file(outcome.order.output / outcome.manifest.training[0].path)
    lines, lengths = part["example_lines"], np.diff(part["example_offsets"])
    assert lines.tolist().count(21) > 1
    assert counts.loss_tokens == int((lengths - 1).sum())
    assert 0.15 < lengths[lines < 0].sum() / lengths[lines > 0].sum() <= 0.25


async def test_general_texts_that_are_all_longer_than_their_share_are_refused(bench: Bench) -> None:
    rng = random.Random(6)
    outcome = await bench.run(
        [{"text": sentence(rng, 30)} for _ in range(4)],
        spec={"method": Method.CPT, "share": 0.01},
        safety_mix=[{"text": sentence(rng, 30)} for _ in range(3)],
    )
    assert outcome.code == "safety_mix.too_long"
