"""Write a version's files, then load them as their users will and compare them with the model that was trained."""

import gc
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import model as peft_layers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from schemas.layout import TRAINING_TEMPLATE
from services.registry.export.gguf_file import write_gguf
from services.registry.export.merging import NotExportable, Weights, read_pairs, write_merged
from services.registry.export.order import WRITTEN, Compared, ExportOrder, ExportReport, Impossible, Worked
from services.registry.export.parity import Logits, Sums, forward_of
from services.registry.export.texts import conversation_of, load_tokenizer_of, token_ids_of
from services.registry.model import Distances
from shared.causal_models import attention_of
from shared.model_files.adapters import check_adapter
from shared.model_files.models import WEIGHTS_SUFFIX, read_base
from shared.model_files.tensors import BadModel, require_finite, shapes_of
from shared.processes.loading import without_bitsandbytes

GGUF_FILE = "model.gguf"
Send = Callable[[ExportReport], None]


def run(order: ExportOrder, work_dir: Path, send: Send) -> None:
    """Carry the order out; the files are in the folder WRITTEN. Sends Compared or Impossible at the end."""
    try:
        _check(order)
        out = work_dir / WRITTEN
        out.mkdir()
        _write(order, out, send)
        send(Compared(distances=_compare(order, out, work_dir, send)))
    except NotExportable as error:
        send(Impossible(code="not_exportable", message=str(error)))
    except BadModel as error:
        send(Impossible(code="bad_model", message=str(error)))
    except (MemoryError, RuntimeError) as error:
        if not _is_want_of_memory(error):
            raise
        message = f"found more than {order.memory_bytes} bytes of memory needed, which this process may take"
        send(Impossible(code="out_of_memory", message=message))


def _is_want_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _check(order: ExportOrder) -> None:
    """Raise BadModel where a file is not what it was when the version was registered."""
    shapes = shapes_of(read_base(order.base))
    if order.kind == "adapter":
        check_adapter(order.model, shapes, rank=order.rank)
    require_finite(order.model)


def _write(order: ExportOrder, out: Path, send: Send) -> None:
    weights = order.base if order.kind == "adapter" else order.model
    pairs = read_pairs(order.model) if order.kind == "adapter" else {}
    total = sum(path.stat().st_size for path in weights.glob(f"*{WEIGHTS_SUFFIX}"))
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        send(Worked(activity="writing", done=min(done, total), total=total))

    if order.format == "safetensors":
        _copy_beside_weights(order.base, out, with_index=order.kind == "adapter")
        if order.kind == "full":
            _copy_beside_weights(order.model, out, with_index=True)
        write_merged(weights, pairs, out, advance)
    else:
        assert order.quantization is not None, "a GGUF file has a type of its matrices"
        write_gguf(
            order.base,
            Weights(weights, pairs),
            out / GGUF_FILE,
            quantization=order.quantization,
            name=order.name,
            advance=advance,
        )


def _copy_beside_weights(directory: Path, out: Path, *, with_index: bool) -> None:
    """Copy configuration, tokenizer and chat template; the template of training alone stays behind."""
    for path in directory.iterdir():
        is_index = path.name.endswith(f"{WEIGHTS_SUFFIX}.index.json")
        if path.suffix != WEIGHTS_SUFFIX and path.name != TRAINING_TEMPLATE and (with_index or not is_index):
            shutil.copyfile(path, out / path.name)


def _compare(order: ExportOrder, out: Path, work_dir: Path, send: Send) -> Distances:
    """Ask the trained model, then the files: one of them is in memory at a time."""
    tokenizer = load_tokenizer_of(order.base)
    texts = token_ids_of(tokenizer)
    logits = Logits(work_dir / "logits")
    steps = iter(range(1, 2 * len(texts) + 1))

    def advance() -> None:
        send(Worked(activity="comparing", done=next(steps), total=2 * len(texts)))

    training_kl = _ask_trained(order, texts, logits, advance)
    gc.collect()
    sums = Sums()
    forward = forward_of(_load(out) if order.format == "safetensors" else _load_gguf(out, order.base))
    for index, token_ids in enumerate(texts):
        sums.add(logits.load(index), forward(token_ids))
        advance()
    equal = None if order.format == "safetensors" else _has_equal_token_ids(out, tokenizer, texts)
    return sums.distances(training_kl=training_kl, equal_token_ids=equal)


def _ask_trained(
    order: ExportOrder, texts: Sequence[list[int]], logits: Logits, advance: Callable[[], None]
) -> float | None:
    """Save the logits of the trained model; return by how much training changed the base model's answers."""
    if order.kind == "full":
        forward = forward_of(_load(order.model, config_from=order.base))
        for index, token_ids in enumerate(texts):
            logits.save(index, forward(token_ids))
            advance()
        return None
    with without_bitsandbytes(peft_layers):
        model = PeftModel.from_pretrained(_load(order.base), str(order.model), low_cpu_mem_usage=True)
    model.eval()
    forward, training = forward_of(model), Sums()
    for index, token_ids in enumerate(texts):
        trained = forward(token_ids)
        logits.save(index, trained)
        with model.disable_adapter():
            training.add(trained, forward(token_ids))
        advance()
    return training.kl / training.num_tokens


def _load(directory: Path, *, config_from: Path | None = None) -> Any:
    config = AutoConfig.from_pretrained(
        config_from or directory, local_files_only=True, trust_remote_code=False
    )
    model, loading = AutoModelForCausalLM.from_pretrained(
        directory,
        config=config,
        dtype=torch.float32,
        attn_implementation=attention_of(config),
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    _require_whole(loading)
    return model.eval()


def _load_gguf(out: Path, base: Path) -> Any:
    """Load the file as transformers reads it, which knows neither the size of a head of every family nor how
    frequencies are scaled: both are the base model's.
    """
    config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    options: dict[str, Any] = {"head_dim": config.head_dim} if getattr(config, "head_dim", None) else {}
    if config.rope_parameters.get("rope_type", "default") != "default":
        options["rope_parameters"] = config.rope_parameters
    model, loading = AutoModelForCausalLM.from_pretrained(
        out,
        gguf_file=GGUF_FILE,
        dtype=torch.float32,
        attn_implementation=attention_of(config),
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        **options,
    )
    _require_whole(loading)
    return model.eval()


def _require_whole(loading: dict[str, Any]) -> None:
    if missing := sorted(loading["missing_keys"]):
        raise NotExportable(f"the written files lack {len(missing)} tensors, first {missing[0]}")


def _has_equal_token_ids(out: Path, tokenizer: Any, texts: Sequence[list[int]]) -> bool:
    """Return whether the file's own tokenizer and chat template write the same token ids."""
    written = AutoTokenizer.from_pretrained(out, gguf_file=GGUF_FILE, local_files_only=True)
    if tokenizer.chat_template and conversation_of(written) != conversation_of(tokenizer):
        return False
    return token_ids_of(written) == list(texts)
