"""Bytes of safetensors files and of adapters, sound and odd."""

import json
from collections.abc import Mapping
from typing import Any

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def safetensors(tensors: Mapping[str, tuple[int, ...]], *, dtype: str = "F32", fill: bytes = b"\0") -> bytes:
    """A file of these shapes, every byte `fill`."""
    header: dict[str, Any] = {}
    position = 0
    for name, shape in tensors.items():
        size = ITEM_BYTES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    return packed(header, fill * position)


def packed(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def adapter_config(rank: int = 8, **changes: Any) -> bytes:
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 16,
        "bias": "none",
        "target_modules": ["q_proj"],
        "use_dora": False,
        "rank_pattern": {},
        "modules_to_save": None,
    }
    return json.dumps(fields | changes).encode()


ADAPTER_SHAPES = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (8, 64),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (32, 8),
}
BASE_SHAPES = {"model.layers.0.self_attn.q_proj.weight": (32, 64), "model.norm.weight": (64,)}
