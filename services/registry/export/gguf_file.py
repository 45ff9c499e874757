"""Write a model as one GGUF file, tensor by tensor: weights, configuration, tokenizer and chat template.

O = output features, I = input features
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as GgmlType
from gguf import LlamaFileType as FileType
from numpy.typing import NDArray
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from schemas.exports import Quantization
from services.registry.export.gguf_words import add_tokenizer
from services.registry.export.merging import Advance, NotExportable, Weights

BLOCK = 32
"""Values that share a scale: rows of other lengths stay in 16 bits."""
ROPE_FACTORS = "rope_freqs.weight"
TYPES: dict[Quantization, tuple[GgmlType, GgmlType, FileType]] = {
    "f16": (GgmlType.F16, GgmlType.F16, FileType.MOSTLY_F16),
    "q8_0": (GgmlType.Q8_0, GgmlType.Q8_0, FileType.MOSTLY_Q8_0),
    # Four bits cost most where tokens come in and go out.
    "q4_0": (GgmlType.Q4_0, GgmlType.Q8_0, FileType.MOSTLY_Q4_0),
}
"""Type of the layers' matrices, of the embedding and the head, and what the file says of both."""
ENDS = ("token_embd.weight", "output.weight")


@dataclass(frozen=True)
class Architecture:
    arch: gguf.MODEL_ARCH
    rotates_pairs: bool
    """Whether llama.cpp rotates neighbours of a head, where transformers rotates its halves."""


ARCHITECTURES = {
    "llama": Architecture(gguf.MODEL_ARCH.LLAMA, rotates_pairs=True),
    "qwen2": Architecture(gguf.MODEL_ARCH.QWEN2, rotates_pairs=False),
    "qwen3": Architecture(gguf.MODEL_ARCH.QWEN3, rotates_pairs=False),
}


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    rows: Callable[[], Iterator[NDArray[np.float32]]]

    @property
    def num_bytes(self) -> int:
        values, size = gguf.GGML_QUANT_SIZES[self.kind]
        return int(np.prod(self.shape)) // values * size


def write_gguf(
    base: Path, weights: Weights, path: Path, *, quantization: Quantization, name: str, advance: Advance
) -> None:
    """Write the file. `base`: folder with configuration and tokenizer. Raises NotExportable."""
    config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    architecture = _architecture(config)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture.arch])
    try:
        _add_configuration(writer, config, name)
        writer.add_file_type(TYPES[quantization][2])
        add_tokenizer(writer, base, config.vocab_size)
        tensors = list(_tensors(config, architecture, weights, quantization))
        for tensor in tensors:
            # The writer takes the shape of quantized tensors in bytes, and makes that of the values of it.
            shape = gguf.quant_shape_to_byte_shape(tensor.shape, tensor.kind)
            is_plain = tensor.kind in (GgmlType.F32, GgmlType.F16)
            writer.add_tensor_info(
                tensor.name,
                tensor.shape if is_plain else shape,
                np.dtype(np.float16 if is_plain else np.uint8),
                tensor.num_bytes,
                tensor.kind,
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(_data(tensor))
            advance(tensor.num_bytes)
    finally:
        writer.close()


def _architecture(config: Any) -> Architecture:
    """Return how the family is written. Raises NotExportable where no test has shown that it is right."""
    family = config.model_type
    if family not in ARCHITECTURES:
        raise NotExportable(f"family {family} cannot be written as GGUF; {', '.join(ARCHITECTURES)} can")
    if config.hidden_act != "silu":
        raise NotExportable(f"activation {config.hidden_act}: expected silu for GGUF")
    if getattr(config, "use_sliding_window", False):
        raise NotExportable("its layers attend to a window; expected full attention for GGUF")
    rope = config.rope_parameters.get("rope_type", "default")
    if rope not in ("default", "llama3"):
        raise NotExportable(f"rope type {rope}: expected default or llama3 for GGUF")
    return ARCHITECTURES[family]


def head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _add_configuration(writer: Any, config: Any, name: str) -> None:
    writer.add_name(name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size(config))
    writer.add_value_length(head_size(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_size(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _tensors(
    config: Any, architecture: Architecture, weights: Weights, quantization: Quantization
) -> Iterator[_Tensor]:
    """Yield the tensors as they are written. Raises NotExportable for one that the format has no name for."""
    if config.rope_parameters.get("rope_type") == "llama3":
        factors = rope_factors(config)
        yield _Tensor(ROPE_FACTORS, factors.shape, GgmlType.F32, lambda: iter([factors]))
    names = gguf.get_tensor_name_map(architecture.arch, config.num_hidden_layers)
    for name in weights.names():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if written is None:
            raise NotExportable(f"tensor {name} has no name in GGUF")
        shape = weights.shape(name)
        heads = None
        if architecture.rotates_pairs and written.split(".")[-2] in ("attn_q", "attn_k"):
            is_query = ".attn_q." in written
            heads = config.num_attention_heads if is_query else config.num_key_value_heads
        rows = partial(_rows, weights, name, heads)
        yield _Tensor(written, shape, _kind(written, shape, quantization), rows)


def _kind(name: str, shape: tuple[int, ...], quantization: Quantization) -> GgmlType:
    if len(shape) < 2:
        return GgmlType.F32
    layers, ends, _ = TYPES[quantization]
    return (ends if name in ENDS else layers) if shape[-1] % BLOCK == 0 else GgmlType.F16


def _rows(weights: Weights, name: str, heads: int | None) -> Iterator[NDArray[np.float32]]:
    """Yield the rows in chunks; heads: how many heads' rows are put in the order that llama.cpp rotates, if any."""
    chunks = (each.numpy() for each in weights.rows(name))
    if heads is None:
        yield from chunks
        return
    whole = np.concatenate(list(chunks))
    halves = whole.reshape(heads, 2, whole.shape[0] // heads // 2, *whole.shape[1:])
    yield halves.swapaxes(1, 2).reshape(whole.shape)


def _data(tensor: _Tensor) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        parts = [gguf.quantize(np.ascontiguousarray(each), tensor.kind) for each in tensor.rows()]
    data = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if tensor.kind is GgmlType.F16 and not np.isfinite(data).all():
        raise NotExportable(f"tensor {tensor.name} has values beyond the range of 16 bit floats")
    return data


def rope_factors(config: Any) -> NDArray[np.float32]:
    """Return by what each frequency of the rotation is divided, which llama.cpp reads as a tensor."""
    plain = config.rope_parameters["rope_theta"] ** -(
        torch.arange(0, head_size(config), 2, dtype=torch.float32) / head_size(config)
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    factors: NDArray[np.float32] = (plain / scaled).numpy()
    return factors
