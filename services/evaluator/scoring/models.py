"""Base model and candidate in memory: checked before they are loaded, one side switched on at a time."""

# ruff: noqa: N806 shapes are part of tensors' names
# T = number of tokens, V = size of the vocabulary
import gc
import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora import model as peft_layers
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from services.evaluator.scoring.order import (
    Failure,
    FailureCode,
    Probe,
    ScoringRefused,
    Side,
    WorkOrder,
)
from services.evaluator.scoring.scorer import Scorer
from services.evaluator.scoring.sharing import tokens_that_share
from shared.causal_models import attention_of
from shared.model_files.adapters import ADAPTER_WEIGHTS, check_adapter
from shared.model_files.models import check_full, digests_beside_weights, read_base
from shared.model_files.tensors import BadModel, NotFinite, require_finite, shapes_of
from shared.processes.loading import without_bitsandbytes

PROBE_TEXT = "The quick brown fox asks: what is your task, and how would you begin?"
MIN_LOGIT_CHANGE = 1e-6
"""Largest change of a logit of the probe with which a candidate still counts as its base."""


class Models:
    def __init__(self, order: WorkOrder) -> None:
        """Check every file, then load the base. Raises ScoringRefused."""
        _check_files(order)
        self.order = order
        base = Path(order.base_path)
        device, dtype = torch.device(order.device), getattr(torch, order.dtype)
        tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
        _check_template(tokenizer, order.template_sha256)
        model = _load(base, order)
        self.scorer = Scorer(
            model=model,
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            max_tokens=min(order.max_tokens, model.config.max_position_embeddings),
            max_new_tokens=order.max_new_tokens,
            max_answer_tokens=order.max_answer_tokens,
            batch_tokens=order.batch_tokens,
            forward_tokens=order.forward_tokens,
            inputs=frozenset(inspect.signature(model.forward).parameters),
        )
        probe = tokenizer(PROBE_TEXT)["input_ids"]
        self.scorer = replace(self.scorer, shared_tokens=tokens_that_share(self.scorer, probe))
        self.probe_ids: list[int] = probe[: self.scorer.max_tokens]
        self.base_logits_TV = _probe(self.scorer)
        self.candidate_logits_TV = self.base_logits_TV
        """Logits of the candidate on the probe once it has proved active; before, those of the base."""
        if order.candidate.kind == "adapter":
            self.scorer = replace(self.scorer, model=_attach(model, Path(order.candidate.path)))

    @contextmanager
    def on(self, side: Side) -> Iterator[Scorer]:
        """Switch to one side. A full model takes the place of its base: the base side comes first."""
        if isinstance(self.scorer.model, PeftModel) and side is Side.BASE:
            with self.scorer.model.disable_adapter():
                yield self.scorer
            return
        if side is Side.CANDIDATE and self.order.candidate.kind == "full":
            self._replace_base(Path(self.order.candidate.path))
        yield self.scorer

    def prove_active(self) -> Probe:
        """Compare the candidate, which is on, with its base. Raises ScoringRefused if it computes what that does."""
        probe = self._compare()
        if probe.max_logit_change <= MIN_LOGIT_CHANGE or probe.nonzero_tensors < min(1, probe.num_tensors):
            raise _refused(
                "adapter_inactive",
                f"largest change of a logit {probe.max_logit_change:.3g}, expected over {MIN_LOGIT_CHANGE};"
                f" {probe.nonzero_tensors} of {probe.num_tensors} B matrices are not zero:"
                " scores would be the base model's",
            )
        return probe

    def _compare(self) -> Probe:
        logits_TV = self.candidate_logits_TV = _probe(self.scorer)
        if not bool(torch.isfinite(logits_TV).all()):
            raise _refused("not_finite", "the candidate's logits on the probe are not finite")
        matrices = [value for name, value in self.scorer.model.named_parameters() if ".lora_B." in name]
        return Probe(
            max_logit_change=float((logits_TV - self.base_logits_TV).abs().max()),
            nonzero_tensors=sum(bool(value.any()) for value in matrices),
            num_tensors=len(matrices),
            base_dtype=_name(self.scorer.dtype),
            adapter_dtype=" and ".join(sorted({_name(value.dtype) for value in matrices})),
        )

    def _replace_base(self, directory: Path) -> None:
        self.scorer = replace(self.scorer, model=None)
        gc.collect()
        self.scorer = replace(self.scorer, model=_load(directory, self.order))


def _check_files(order: WorkOrder) -> None:
    base, candidate = Path(order.base_path), order.candidate
    directory = Path(candidate.path)
    try:
        shapes = shapes_of(read_base(base))
        if candidate.kind == "full":
            check_full(directory, shapes, digests_beside_weights(base))
        else:
            check_adapter(directory, shapes, rank=candidate.rank)
        require_finite(directory)
    except NotFinite as error:
        raise _refused("not_finite", str(error)) from error
    except BadModel as error:
        raise _refused("malformed_model", str(error)) from error


def _check_template(tokenizer: Any, expected: str) -> None:
    text = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != expected:
        raise _refused("template_changed", f"chat template has sha256 {digest}, expected {expected}")


def _load(directory: Path, order: WorkOrder) -> Any:
    config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    places = places_of(order)
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        attn_implementation=attention_of(config),
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        dtype=getattr(torch, order.dtype),
        device_map="auto" if places else None,
        max_memory=places or None,
    )
    if not places:
        return model.to(order.device).eval()
    if elsewhere := {*model.hf_device_map.values()} - {*places}:
        raise MemoryError(f"{directory} does not fit on {len(places)} GPUs: layers are on {elsewhere}")
    return model.eval()


def places_of(order: WorkOrder) -> dict[int, int]:
    """Return the free bytes of each GPU that the layers are spread over; none where the model is on one device.

    Raises: MemoryError where fewer are there than the order has.
    """
    if order.num_devices is None or order.device == "cpu":
        return {}
    visible = torch.cuda.device_count()
    if visible < order.num_devices:
        raise MemoryError(f"found {visible} GPUs, expected {order.num_devices} to spread the model over")
    return {number: torch.cuda.mem_get_info(number)[0] for number in range(order.num_devices)}


def _attach(model: Any, directory: Path) -> PeftModel:
    """Return the model with its adapter, proved to hold exactly the file's matrices."""
    with without_bitsandbytes(peft_layers):
        adapted = PeftModel.from_pretrained(model, directory, is_trainable=False).eval()
    expected = load_file(directory / ADAPTER_WEIGHTS)
    # Otherwise PEFT opens what the adapter's configuration calls its base: any path of this machine, or a hub's name.
    loaded = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    odd = sorted(set(expected) ^ set(loaded)) or [
        name for name, value in expected.items() if not torch.equal(value.float(), loaded[name].cpu().float())
    ]
    if odd:
        raise _refused("malformed_model", f"tensor {odd[0]!r} was not loaded as it is in {ADAPTER_WEIGHTS}")
    return adapted


@torch.inference_mode()
def _probe(scorer: Scorer) -> Tensor:
    """Return logits on a fixed text, (T, V) in float32."""
    ids = scorer.tokenizer(PROBE_TEXT)["input_ids"][: scorer.max_tokens]
    logits = scorer.model(input_ids=torch.tensor([ids], device=scorer.device), use_cache=False).logits
    logits_TV: Tensor = logits[0].float()
    return logits_TV


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refused(code: FailureCode, message: str) -> ScoringRefused:
    return ScoringRefused(Failure(code=code, message=message))
