"""What differs between methods of training: what a batch is, and what its loss is. All else is one loop for all."""

from collections.abc import Mapping

from schemas.specification import Method
from services.trainer_agent.training.methods.objective import Objective
from services.trainer_agent.training.methods.pretraining import PRETRAINING
from services.trainer_agent.training.methods.supervised import SUPERVISED

OBJECTIVES: Mapping[Method, Objective] = {
    Method.LORA: SUPERVISED,
    Method.SFT: SUPERVISED,
    Method.QLORA: SUPERVISED,
    Method.CPT: PRETRAINING,
}
