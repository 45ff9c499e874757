"""A replica that computes with transformers and PEFT, so that a test can break it while it answers as the models do."""

import threading
from dataclasses import dataclass, field
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
    _models: dict[str, Any] = field(default_factory=dict)
    _computing: threading.Lock = field(default_factory=threading.Lock)

    def complete(self, body: dict) -> tuple[int, dict]:
        name = body["model"]
        if name != BASE and name not in self.adapters:
            return 404, {"error": {"message": f"The model `{name}` does not exist."}}
        with self._computing:
            model = self._model(name)
            return 200, {
                "choices": [_likeliest(model, body) if "logprobs" in body else _written(model, body)]
            }

    def asked(self, name: str) -> int:
        return sum(body["model"] == name for body in self.bodies)

    def _model(self, name: str) -> Any:
        if name not in self._models:
            from peft import PeftModel
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(self.base_dir)
            model = model if name == BASE else PeftModel.from_pretrained(model, str(self.adapters[name]))
            self._models[name] = model.eval()
        return self._models[name]


def _likeliest(model: Any, body: dict) -> dict:
    values, tokens = _next(model, body["prompt"]).log_softmax(dim=-1).topk(body["logprobs"])
    listed = {
        f"token_id:{token}": value for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    }
    return {"logprobs": {"top_logprobs": [listed]}, "finish_reason": "length"}


def _written(model: Any, body: dict) -> dict:
    ids: list[int] = []
    while len(ids) < body["max_tokens"]:
        ids.append(int(_next(model, [*body["prompt"], *ids]).argmax()))
        if ids[-1] in body["stop_token_ids"]:
            return {"token_ids": ids, "finish_reason": "stop"}
    return {"token_ids": ids, "finish_reason": "length"}


def _next(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
