"""Schedules and optimizers, compared with those of the libraries and with formulas written out by hand."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import optimization

from schemas.specification import LoraSpec, Method, Recipe
from services.trainer_agent.protocol import Ended, Outcome, ResumeChecked, Saved, Stepped
from services.trainer_agent.training.optimizer import OPTIMIZERS, Optimizer
from services.trainer_agent.training.schedule import SHAPES, Schedule
from tests.training.jobs import a_recipe, an_order, as_bundle, carry_out, model_sha256, reports_of

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


RATE, DECAY, BLOCK = 1e-2, 0.1, 256


def a_matrix(rows=80, columns=64):
    generator = torch.Generator().manual_seed(3)
    parameter = nn.Parameter(torch.randn(rows, columns, generator=generator))
    return parameter, [torch.randn(rows, columns, generator=generator) for _ in range(3)]


def updated(name, parameter, gradients):
    optimizer = Optimizer.of({"w": parameter}, Recipe(optimizer=name, weight_decay=DECAY))
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step(RATE)
        assert parameter.grad is None
    return optimizer.moments_of(parameter)


def in_blocks(scales, like):
    return scales.repeat_interleave(BLOCK)[: like.numel()].view_as(like)


def as_bytes(moment, codes):
    """The nearest code of each value over its block's largest, and these."""
    scales = moment.abs().flatten().split(BLOCK)
    scales = torch.stack([block.max() for block in scales])
    distances = (moment / in_blocks(scales, moment)).flatten()[:, None] - codes
    return distances.abs().argmin(1).view_as(moment), scales


def test_moments_of_8_bits_are_codes_of_a_map_times_the_scale_of_their_block():
    parameter, gradients = a_matrix()
    w = parameter.detach().clone()
    state = updated("adamw_8bit", parameter, gradients)
    codes = state["qmap1"], state["qmap2"]
    assert (len(codes[0]), float(codes[0].min()), float(codes[1].min())) == (
        256,
        pytest.approx(-0.99, abs=0.01),
        0.0,
    )
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for step, gradient in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        w = w - RATE * DECAY * w - RATE * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        (m8, m_scales), (v8, v_scales) = as_bytes(m, codes[0]), as_bytes(v, codes[1])
        m, v = codes[0][m8] * in_blocks(m_scales, m), codes[1][v8] * in_blocks(v_scales, v)
    # Where the library takes the code beside the nearest, a weight moves by more than rounding moves it.
    plain, _ = a_matrix()
    updated("adamw", plain, gradients)
    near = [float(((parameter - other).abs() < 1e-6).float().mean()) for other in (w, plain)]
    assert near[0] > 0.97
    assert near[1] < 0.05
    assert (state["state1"] == m8).float().mean() > 0.97
    torch.testing.assert_close(state["absmax1"], m_scales, rtol=0.02, atol=0)
    torch.testing.assert_close(state["absmax2"], v_scales, rtol=0.02, atol=0)


@pytest.mark.parametrize(("rows", "columns"), [(80, 64), (16, 64)])
def test_muon_steps_along_the_orthogonalised_momentum_as_far_as_adamw(rows, columns):
    """Five Newton-Schulz steps of X (aI + bXX' + c(XX')^2), in float64 here and in bfloat16 there."""
    parameter, gradients = a_matrix(rows, columns)
    w, momentum = parameter.detach().double(), torch.zeros(rows, columns).double()
    state = updated("muon", parameter, gradients)
    for gradient in gradients:
        momentum = 0.95 * momentum + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * momentum
        x = x / x.norm()
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        w = w * (1 - RATE * DECAY) - RATE * 0.2 * max(rows, columns) ** 0.5 * x
    torch.testing.assert_close(state["momentum_buffer"].double(), momentum, rtol=0, atol=1e-6)
    torch.testing.assert_close(parameter.double(), w, rtol=0, atol=0.05 * RATE)


def test_muon_takes_matrices_and_leaves_tables_and_vectors_to_adamw():
    matrix, table, vector = (nn.Parameter(torch.ones(*shape)) for shape in ((8, 8), (32, 8), (8,)))
    named = {"matrix": matrix, "table": table, "vector": vector}
    optimizer = Optimizer.of(named, Recipe(optimizer="muon"), [table])
    kept = {name: set(optimizer.moments_of(parameter)) for name, parameter in named.items()}
    adamw = {"exp_avg", "exp_avg_sq"}
    assert kept == {"matrix": {"momentum_buffer"}, "table": adamw, "vector": adamw}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_decays_vectors(name):
    vector = nn.Parameter(torch.ones(8))
    optimizer = Optimizer.of({"v": vector}, Recipe(optimizer=name, weight_decay=1.0))
    vector.grad = torch.zeros(8)
    optimizer.step(0.5)
    assert torch.equal(vector, torch.ones(8))


@pytest.mark.any_device
@pytest.mark.parametrize(
    ("name", "method", "kept"),
    [
        (
            "adamw_8bit",
            Method.LORA,
            {"state1": torch.uint8, "absmax2": torch.float32, "qmap1": torch.float32},
        ),
        ("paged_adamw_8bit", Method.SFT, {"state2": torch.uint8}),
        ("paged_adamw_32bit", Method.LORA, {"state1": torch.float32}),
        ("adamw_8bit", Method.QLORA, {"state1": torch.uint8}),
        ("paged_adamw_8bit", Method.QLORA, {"state2": torch.uint8}),
        ("muon", Method.SFT, {"momentum_buffer": torch.float32, "exp_avg": torch.float32}),
    ],
)
def test_a_run_learns_and_continues_from_its_bundle_to_the_same_bytes(inputs, tmp_path, name, method, kept):
    is_full = method is Method.SFT
    lora = LoraSpec() if is_full else LoraSpec(rank=64, target_modules=("q_proj", "down_proj"))
    rate = 1e-3 if is_full else 2e-2
    recipe = a_recipe(method=method, lora=lora, learning_rate=rate, optimizer=name)
    reports = carry_out(tmp_path / "whole", an_order(inputs, recipe))
    [ended] = reports_of(reports, Ended)
    assert ended.outcome is Outcome.COMPLETED, ended.message
    losses = [stepped.loss for stepped in reports_of(reports, Stepped)]
    assert losses[-1] < losses[0] - 0.1
    first, *_, last = reports_of(reports, Saved)
    state = load_file(first.directory / "optimizer" / "rank-0.safetensors")
    for part, dtype in kept.items():
        assert dtype in {tensor.dtype for key, tensor in state.items() if key.endswith(f".{part}")}
    bundle = as_bundle(an_order(inputs, recipe), first, tmp_path / "bundle")
    later = carry_out(tmp_path / "later", an_order(inputs, recipe, attempt=2, resume_dir=bundle))
    [checked] = reports_of(later, ResumeChecked)
    assert checked.certificate.exact, checked.certificate.reason
    assert model_sha256(reports_of(later, Saved)[-1]) == model_sha256(last)


def test_a_process_that_trains_with_adamw_by_itself_imports_neither_bitsandbytes_nor_deepspeed():
    code = (
        "import sys; from shared.processes.loading import quick_imports, without_bitsandbytes\n"
        "with quick_imports():\n"
        "    from services.trainer_agent.training import child\n"
        "    from services.trainer_agent.training.network import LoraConfig, get_peft_model, nn, peft_layers\n"
        "with without_bitsandbytes(peft_layers):\n"
        "    get_peft_model(nn.Sequential(nn.Linear(4, 4)), LoraConfig(target_modules=['0']))\n"
        "sys.exit(bool({'bitsandbytes', 'deepspeed'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
