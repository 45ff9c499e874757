"""Malformed files are refused by our own check, before any loader opens them."""

import json
import math
import random
import struct

import pytest

from services.evaluator.scoring.model_files import check_adapter, check_model
from services.evaluator.scoring.order import Candidate, WorkOrder
from services.evaluator.scoring.tensor_files import MalformedModel, read_header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def defaults():
    from peft import LoraConfig

    return LoraConfig(task_type="CAUSAL_LM").to_dict()


@pytest.fixture
def check(base_path, defaults):
    def run(directory, rank=8, max_rank=64):
        check_adapter(directory, check_model(base_path), rank=rank, max_rank=max_rank, defaults=defaults)

    return run


def header_of(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(path, header, data, *, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


def test_a_good_adapter_is_accepted(check, adapter_path):
    check(adapter_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 0), ("r", 9), ("r", "8"), ("r", True), ("r", None), ("r", 8.0), ("r", 10**9),
        ("lora_alpha", 0), ("lora_alpha", -1), ("lora_alpha", math.nan), ("lora_alpha", math.inf), ("lora_alpha", "16"), ("lora_alpha", 1e300),
        ("lora_dropout", 1), ("lora_dropout", -0.1),
        ("peft_type", "PROMPT_TUNING"), ("peft_type", "IA3"),
        ("rank_pattern", {"q_proj": 4096}), ("alpha_pattern", {"q_proj": 1e9}), ("use_dora", True), ("use_rslora", True),
        ("bias", "all"), ("modules_to_save", ["lm_head"]), ("auto_mapping", {"parent_library": "os"}),
        ("layer_replication", [[0, 1000]]), ("target_parameters", ["x"]), ("trainable_token_indices", [1]),
        ("target_modules", ".*(a+)+$"), ("target_modules", []), ("target_modules", [1]), ("target_modules", ["../x"]), ("target_modules", None),
        ("init_lora_weights", "pissa"), ("megatron_config", {}), ("unknown_field", 1), ("megatron_core", "os"),
    ],
)  # fmt: skip
def test_an_odd_configuration_is_refused(check, adapter_path, copy_of, field, value):
    path = copy_of(adapter_path)
    config = json.loads((path / CONFIG).read_text())
    (path / CONFIG).write_text(json.dumps(config | {field: value}))
    with pytest.raises(MalformedModel, match=field):
        check(path)


def test_a_rank_above_the_limit_is_refused(check, adapter_path):
    with pytest.raises(MalformedModel, match="from 1 to 4"):
        check(adapter_path, max_rank=4)


@pytest.mark.parametrize("name", ["adapter_model.bin", "modeling.py", "extra.safetensors", "pickle.pkl"])
def test_any_other_file_is_refused(check, adapter_path, copy_of, name):
    path = copy_of(adapter_path)
    (path / name).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(MalformedModel, match="alone"):
        check(path)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_missing_file_is_refused(check, adapter_path, copy_of, name):
    path = copy_of(adapter_path)
    (path / name).unlink()
    with pytest.raises(MalformedModel, match="alone"):
        check(path)


def first(header):
    return next(name for name in header if name != "__metadata__")


def rename(header, new):
    header[new] = header.pop(first(header))


def resize(header, shape):
    """Keep the bytes, change the shape."""
    header[first(header)]["shape"] = shape


def shift(header, by):
    header[first(header)]["data_offsets"] = [offset + by for offset in header[first(header)]["data_offsets"]]


CHANGES = {
    "unknown layer": lambda h: rename(h, "base_model.model.model.layers.99.mlp.up_proj.lora_A.weight"),
    "norm instead of linear": lambda h: rename(h, "base_model.model.model.norm.lora_A.weight"),
    "embedding": lambda h: rename(h, "base_model.model.model.embed_tokens.lora_embedding_A"),
    "foreign name": lambda h: rename(h, "__import__('os').system"),
    "transposed": lambda h: h[first(h)]["shape"].reverse(),
    "flat": lambda h: resize(h, [math.prod(h[first(h)]["shape"])]),
    "negative": lambda h: resize(h, [-8, -64]),
    "huge": lambda h: resize(h, [2**47, 2**47]),
    "many dimensions": lambda h: resize(h, [1] * 9),
    "fractional": lambda h: resize(h, [8.0, 64]),
    "text shape": lambda h: resize(h, "8,64"),
    "unknown type": lambda h: h[first(h)].update(dtype="C64"),
    "narrow type": lambda h: h[first(h)].update(dtype="F16"),
    "integers": lambda h: h[first(h)].update(dtype="I32"),
    "overlap": lambda h: shift(h, -4),
    "gap": lambda h: shift(h, 4),
    "backwards": lambda h: h[first(h)]["data_offsets"].reverse(),
    "extra field": lambda h: h[first(h)].update(stride=[1]),
    "missing field": lambda h: h[first(h)].pop("dtype"),
    "not an object": lambda h: h.update({first(h): 3}),
    "A without B": lambda h: h.pop(next(name for name in h if "lora_B" in name)),
    "no tensor": lambda h: [h.pop(name) for name in list(h)],
    "too many tensors": lambda h: h.update({f"x{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(5001)}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_header_that_lies_is_refused(check, adapter_path, copy_of, change):
    path = copy_of(adapter_path)
    header, data = header_of(path / WEIGHTS)
    CHANGES[change](header)
    write(path / WEIGHTS, header, data)
    with pytest.raises(MalformedModel):
        check(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 bytes"),
        (b"\x01\x02", "2 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "header of"),
        (struct.pack("<Q", 100 * 1024 * 1024) + b"{" + b" " * 100, "header of"),
        (struct.pack("<Q", 3) + b"{}", "header of"),
        (struct.pack("<Q", 2) + b"[]", "list"),
        (struct.pack("<Q", 4) + b"null", "NoneType"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "not JSON"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "not JSON"),
        (struct.pack("<Q", 17) + b'{"a": {}, "a": 1}', "twice"),
        (struct.pack("<Q", 2) + b"{}trailing", "0 tensors"),
        (b"\x80\x04\x95" + b"pickled" * 20, "header of"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path, content, why):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(MalformedModel, match=why):
        read_header(path)


@pytest.mark.parametrize(("extra", "cut"), [(b"pickle", 0), (b"", 4)])
def test_bytes_that_no_tensor_owns_or_that_are_missing_are_refused(adapter_path, tmp_path, extra, cut):
    raw = (adapter_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(raw[: len(raw) - cut] + extra)
    with pytest.raises(MalformedModel, match="bytes of data"):
        read_header(tmp_path / WEIGHTS)


def test_a_rank_other_than_the_lineage_s_is_refused(check, adapter_path):
    with pytest.raises(MalformedModel, match="as in the lineage"):
        check(adapter_path, rank=4)


def test_one_matrix_of_a_pair_alone_is_refused(check, adapter_path, copy_of):
    from safetensors.torch import load_file, save_file

    path = copy_of(adapter_path)
    tensors = load_file(path / WEIGHTS)
    lonely = next(name for name in tensors if "lora_B" in name)
    save_file({name: tensor for name, tensor in tensors.items() if name != lonely}, path / WEIGHTS)
    with pytest.raises(MalformedModel, match="A alone"):
        check(path)


def test_a_header_over_one_mebibyte_is_refused(tmp_path):
    write(tmp_path / "x.safetensors", b"{" + b" " * (1024 * 1024) + b"}", b"")
    with pytest.raises(MalformedModel, match="1048576"):
        read_header(tmp_path / "x.safetensors")


def test_five_hundred_mutations_are_refused_or_harmless(adapter_path, tmp_path):
    """Whatever our check lets through, the loader reads without a crash and with the same shapes."""
    from safetensors import safe_open

    raw = (adapter_path / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    chance, path, refused = random.Random(7), tmp_path / "x.safetensors", 0
    for _ in range(500):
        mutant = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            mutant[chance.randrange(8 + length)] = chance.randrange(256)
        path.write_bytes(mutant)
        try:
            shapes = {name: tensor.shape for name, tensor in read_header(path).items()}
        except MalformedModel:
            refused += 1
            continue
        with safe_open(path, framework="pt") as file:
            assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == shapes  # noqa: SIM118
    assert refused > 400


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modeling_evil.py", b"print(1)"),
        ("pytorch_model.bin", b"cos\nsystem"),
        ("config.json", b'{"auto_map": {"AutoModelForCausalLM": "evil.Evil"}, "model_type": "llama"}'),
        ("tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}'),
        ("generation_config.json", b"[1]"),
        ("again.safetensors", None),
    ],
)
def test_a_base_model_with_code_or_doubles_is_refused(base_path, copy_of, name, content):
    path = copy_of(base_path)
    (path / name).write_bytes((path / "model.safetensors").read_bytes() if content is None else content)
    with pytest.raises(MalformedModel, match=name.replace("again", "(again|model)")):
        check_model(path)


def test_no_loader_opens_a_malformed_adapter(
    base_path, adapter_path, copy_of, template_sha256, tmp_path, monkeypatch
):
    from services.evaluator.scoring import models
    from services.evaluator.scoring.run import run

    path = copy_of(adapter_path)
    header, data = header_of(path / WEIGHTS)
    shift(header, 4)
    write(path / WEIGHTS, header, data)
    for loader in ("AutoModelForCausalLM", "AutoTokenizer", "PeftModel", "load_file"):
        monkeypatch.delattr(models, loader)
    order = WorkOrder(
        base_path=str(base_path),
        template_sha256=template_sha256,
        candidate=Candidate(kind="adapter", path=str(path), rank=8),
        parts=(),
    )
    scores = run(order, tmp_path / "work", lambda _: None)
    assert scores.failure.code == "malformed_model"
    assert not scores.parts
