"""A replica that computes with transformers and PEFT, so that a test can break it while it answers as the models do."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.answer_engines import Replica

BASE = "tiny@base"


@dataclass
class TorchReplica(Replica):
    """`/v1/completions` of a base model and the adapters beside it; those are loaded when they are first asked."""

    base_dir: Path = Path()
    adapters: dict[str, Path] = field(default_factory=dict)
    """Directories by model name."""
    _computing: threading.Lock = field(default_factory=threading.Lock)

    def complete(self, body: dict) -> tuple[int, dict]:
        name = body["model"]
        if name != BASE and name not in self.adapters:
            return 404, {"error": {"message": f"The model `{name}` does not exist."}}
        with self._computing:
            model = _model(self.base_dir, self.adapters.get(name))
            prompt = tuple(body["prompt"])
            if "logprobs" in body:
                choice = _likeliest(model, prompt, body["logprobs"])
            else:
                choice = _written(model, prompt, body["max_tokens"], tuple(body["stop_token_ids"]))
            return 200, {"choices": [choice]}

    def asked(self, name: str) -> int:
        return sum(body["model"] == name for body in self.bodies)


# Kept for all replicas of a process: the same questions are asked of the same models by one test after another.
@cache
def _model(base_dir: Path, adapter: Path | None) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base_dir)
    return (model if adapter is None else PeftModel.from_pretrained(model, str(adapter))).eval()


def _likeliest(model: Any, prompt: Sequence[int], count: int) -> dict:
    values, tokens = _next(model, prompt).log_softmax(dim=-1).topk(count)
    listed = {
        f"token_id:{token}": value for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    }
    return {"logprobs": {"top_logprobs": [listed]}, "finish_reason": "length"}


@cache
def _written(model: Any, prompt: tuple[int, ...], max_tokens: int, stop_ids: tuple[int, ...]) -> dict:
    ids: list[int] = []
    while len(ids) < max_tokens:
        ids.append(int(_next(model, (*prompt, *ids)).argmax()))
        if ids[-1] in stop_ids:
            return {"token_ids": ids, "finish_reason": "stop"}
    return {"token_ids": ids, "finish_reason": "length"}


def _next(model: Any, ids: Sequence[int]) -> Any:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1].float()
