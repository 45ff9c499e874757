"""What differs between methods of training: what a batch is, and what its loss is. All else is one loop for all."""

from collections.abc import Callable, Mapping

from schemas.specification import Method, Recipe
from services.trainer_agent.training.methods.objective import Objective
from services.trainer_agent.training.methods.preference import preference
from services.trainer_agent.training.methods.pretraining import pretraining
from services.trainer_agent.training.methods.supervised import supervised

OBJECTIVES: Mapping[Method, Callable[[Recipe], Objective]] = {
    Method.LORA: supervised,
    Method.SFT: supervised,
    Method.QLORA: supervised,
    Method.CPT: pretraining,
    Method.DPO: preference,
}
