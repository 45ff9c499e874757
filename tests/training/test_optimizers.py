"""Schedules and optimizers, compared with those of the libraries and with formulas written out by hand."""

import pytest
import torch
from transformers import optimization

from services.trainer_agent.training.schedule import SHAPES, Schedule

LENGTHS = {"peak": 1.0, "num_steps": 110, "warmup_steps": 10}


@pytest.mark.parametrize("name", SHAPES)
def test_after_the_warmup_the_rate_is_that_of_transformers(name):
    theirs = {
        "cosine": lambda o: optimization.get_cosine_schedule_with_warmup(o, 10, 110),
        "linear": lambda o: optimization.get_linear_schedule_with_warmup(o, 10, 110),
        "constant": lambda o: optimization.get_constant_schedule_with_warmup(o, 10),
        "wsd": lambda o: optimization.get_wsd_schedule(
            o, 10, 20, num_training_steps=110, decay_type="linear"
        ),
    }
    scheduler = theirs[name](torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0))
    [factor] = scheduler.lr_lambdas
    schedule = Schedule(name, **LENGTHS, decay_steps=20)
    assert [schedule.rate(s) for s in range(10, 111)] == pytest.approx([factor(s) for s in range(10, 111)])
