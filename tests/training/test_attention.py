"""Attention with borders equals attention with a mask, and is left where it does not keep examples apart."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.training.families import build
from schemas.base import DeviceKind
from schemas.training import PackingVerdict
from services.trainer_agent.protocol import Ended, Outcome, PreflightDone, Stepped
from services.trainer_agent.training import attention, network
from services.trainer_agent.training.attention import VARLEN, borders_of, each_alone, fastest
from services.trainer_agent.training.plan import Layout, rows_of
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.tensors import inputs_of
from tests.training.jobs import a_recipe, a_work_dir, an_order, carry_out, reports_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
WITH_WINDOWS = "Gemma 3"
"""Layers that see all before, and layers that see the last tokens alone."""


def written_out(query, key, value, borders, _, longest, __, *, scale, window_size, enable_gqa):
    """Each example alone, in the words of the definition. Shapes (tokens, heads, size)."""
    times = query.shape[1] // key.shape[1]
    assert enable_gqa == (times > 1)
    assert longest == max(end - start for start, end in pairwise(borders.tolist()))
    pieces = []
    for start, end in pairwise(borders.tolist()):
        own_query, own_key, own_value = (states[start:end].transpose(0, 1) for states in (query, key, value))
        own_key, own_value = (states.repeat_interleave(times, 0) for states in (own_key, own_value))
        scores = own_query @ own_key.transpose(1, 2) * scale
        before, after = window_size
        ahead = torch.arange(end - start)[None] - torch.arange(end - start)[:, None]
        hidden = (ahead > after) | ((-ahead > before) if before >= 0 else torch.zeros_like(ahead, dtype=bool))
        pieces.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ own_value).transpose(0, 1))
    return torch.cat(pieces)


@pytest.mark.parametrize("window", [-1, 3, 11, 12, 40])
@pytest.mark.parametrize("num_keys", [2, 4])
def test_each_example_attends_to_itself_as_defined(window, num_keys):
    draw = torch.Generator().manual_seed(5)
    query = torch.randn(30, 4, 8, generator=draw, requires_grad=True)
    key, value = (torch.randn(30, num_keys, 8, generator=draw, requires_grad=True) for _ in range(2))
    borders = torch.tensor([0, 12, 13, 30], dtype=torch.int32)
    options = {"scale": 0.3, "window_size": (window, 0), "enable_gqa": num_keys < 4}
    grown = []
    for attend in (each_alone, written_out):
        mixed = attend(query, key, value, borders, borders, 17, 17, **options)
        grown.append((mixed, *torch.autograd.grad(mixed.square().sum(), (query, key, value))))
    for own, expected in zip(*grown, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)


def test_a_run_with_borders_takes_the_steps_of_one_with_a_mask(inputs, tmp_path, monkeypatch):
    order = an_order(inputs, a_recipe(num_epochs=1))
    bordered = carry_out(tmp_path / "bordered", order)
    monkeypatch.setattr(network, "fastest", lambda *_: "sdpa")
    masked = carry_out(tmp_path / "masked", order)
    [done] = reports_of(bordered, PreflightDone)
    assert (done.preparation.attention, done.preparation.packing) == (VARLEN, PackingVerdict.PROVED)
    expected = [(step.loss, step.grad_norm) for step in reports_of(masked, Stepped)]
    for step, (loss, norm) in zip(reports_of(bordered, Stepped), expected, strict=True):
        assert step.loss == pytest.approx(loss, abs=1e-5)
        assert step.grad_norm == pytest.approx(norm, rel=1e-3)


def test_a_kernel_that_keeps_nothing_apart_is_left_for_a_mask(inputs, tmp_path, monkeypatch, caplog):
    def leaking(query, key, value, borders, *rest, **options):
        ends = borders[[0, -1]]
        return written_out(query, key, value, ends, ends, int(ends[1]), *rest[2:], **options)

    monkeypatch.setattr(attention, "each_alone", leaking)
    reports = carry_out(tmp_path / "work", an_order(inputs, a_recipe(num_epochs=1, micro_batch_size=1)))
    [done], [ended] = reports_of(reports, PreflightDone), reports_of(reports, Ended)
    assert (done.preparation.attention, done.preparation.packing) == ("sdpa", PackingVerdict.PROVED)
    assert ended.outcome is Outcome.COMPLETED
    assert "attention varlen does not keep packed examples apart" in caplog.text


def test_a_window_of_a_layer_ends_where_transformers_has_it(tmp_path):
    base_dir = build(WITH_WINDOWS, tmp_path).inputs.base_dir
    tokens = torch.arange(40)[None]
    positions = torch.cat([torch.arange(23), torch.arange(17)])[None]
    borders = torch.tensor([0, 23, 40], dtype=torch.int32)
    lengths = {"max_length_q": 23, "max_length_k": 23, "cu_seq_lens_q": borders, "cu_seq_lens_k": borders}

    def logits(name, window, **options):
        config = AutoConfig.from_pretrained(base_dir)
        config.sliding_window = window
        model = AutoModelForCausalLM.from_pretrained(base_dir, config=config, attn_implementation=name)
        with torch.no_grad():
            return model.eval()(tokens, position_ids=positions, use_cache=False, **options).logits

    expected = logits("sdpa", 5)
    torch.testing.assert_close(logits(VARLEN, 5, **lengths), expected, atol=1e-4, rtol=0)
    assert (logits("sdpa", 4) - expected).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("family", "device", "dtype", "expected"),
    [
        ("Llama", GPU, torch.bfloat16, VARLEN),
        ("Gemma 3", GPU, torch.bfloat16, VARLEN),
        ("Llama", GPU, torch.float32, "sdpa"),
        ("Gemma 2", GPU, torch.bfloat16, "eager"),
        ("gpt-oss", GPU, torch.bfloat16, "eager"),
    ],
)
def test_the_device_and_the_family_decide(tmp_path, monkeypatch, family, device, dtype, expected):
    config = AutoConfig.from_pretrained(build(family, tmp_path).inputs.base_dir)
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: False)
    assert fastest(config, device, dtype) == expected
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: True)
    assert fastest(config, device, dtype) == ("flash_attention_2" if expected == VARLEN else expected)


@pytest.mark.parametrize(
    ("family", "dtype", "expected"),
    [
        ("Llama", torch.bfloat16, VARLEN),
        ("Gemma 3", torch.float32, VARLEN),
        ("Gemma 2", torch.float32, "eager"),
        ("GPT-2", torch.float32, "sdpa"),
    ],
)
def test_a_cpu_takes_each_example_by_itself_where_nothing_is_dropped(tmp_path, family, dtype, expected):
    config = AutoConfig.from_pretrained(build(family, tmp_path).inputs.base_dir)
    assert fastest(config, CPU, dtype) == expected
    config.get_text_config().head_dim = 20
    assert fastest(config, CPU, dtype) == expected


@pytest.mark.parametrize(
    ("name", "size"), [("head_dim", 20), ("head_dim", 512), ("attention_dropout", 0.1), ("attn_pdrop", 0.1)]
)
def test_what_the_kernels_do_not_know_gets_a_mask(inputs, name, size):
    config = AutoConfig.from_pretrained(inputs.base_dir)
    assert fastest(config, GPU, torch.bfloat16) in (VARLEN, "flash_attention_2")
    setattr(config, name, size)
    assert fastest(config, GPU, torch.bfloat16) == "sdpa"


def test_borders_lie_where_positions_begin_again(inputs, tmp_path):
    order = an_order(inputs)
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, inputs.world, Reports(work_dir, inputs.world))
    layout = Layout(packed=True, micro_batch_size=3, max_seq_length=96)
    for micro_batch in rows_of(tuple(run.dataset.training[index] for index in range(6)), layout):
        batch = inputs_of(micro_batch, CPU)
        starts = (batch.positions_BT.flatten() == 0).nonzero().flatten().tolist()
        assert batch.borders_N.tolist() == [*starts, batch.tokens_BT.numel()]
        assert batch.longest == int(batch.positions_BT.max()) + 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("family", ["Llama", WITH_WINDOWS])
def test_the_kernel_of_a_gpu_rounds_no_more_than_a_mask_does(tmp_path, family):
    """Against float32: losses and gradients of packed rows."""
    inputs = build(family, tmp_path).inputs
    order = an_order(replace(inputs, device=DeviceKind.CUDA), a_recipe(precision="float32"))
    work_dir = a_work_dir(tmp_path / "work", order)
    run, _ = prepare(order, work_dir, inputs.world, Reports(work_dir, inputs.world))
    [micro_batch] = rows_of((run.dataset.training[4],), Layout(True, 1, 96))
    batch = inputs_of(micro_batch, GPU)
    assert len(batch.borders_N) > 2

    def computed(name, dtype):
        model = AutoModelForCausalLM.from_pretrained(inputs.base_dir, attn_implementation=name, dtype=dtype)
        model = model.to(GPU)
        borders = borders_of(batch) if name == VARLEN else {}
        logits = model(batch.tokens_BT, position_ids=batch.positions_BT, use_cache=False, **borders).logits
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1)[batch.sources_K].float(), batch.targets_K, reduction="none"
        )
        losses.sum().backward()
        return losses.detach(), model.get_input_embeddings().weight.grad.float()

    exact = computed("sdpa", torch.float32)
    masked, bordered = computed("sdpa", torch.bfloat16), computed(VARLEN, torch.bfloat16)
    for truth, rounded, own in zip(exact, masked, bordered, strict=True):
        assert (own - truth).norm() <= 1.5 * (rounded - truth).norm()
