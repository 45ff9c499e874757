"""Continued pre-training (`cpt`): to predict texts, so that the model knows what they say.

A batch is rows of documents, packed with borders: none sees another, and each ends with the end-of-text token, which
is a target too. A document that is longer than a window continues in another row; its pieces share one token, so that
every token but the document's first has one before it and is predicted once. The loss is the mean negative
log-likelihood of all of them: the loss masks mark every token of a document, and the rest is as with answers.

The perplexity of the validation file is reported before the first step, too.
"""

from dataclasses import replace

from schemas.specification import Recipe
from services.trainer_agent.training.methods.objective import Objective
from services.trainer_agent.training.methods.supervised import supervised


def pretraining(recipe: Recipe) -> Objective:
    return replace(supervised(recipe), measures_start=True)
