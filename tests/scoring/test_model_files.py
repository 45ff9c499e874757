"""Malformed files are refused by our own check, before any loader opens them, and by all services alike."""

import json
import math
import random
import struct

import pytest

from services.evaluator.scoring.order import Candidate, WorkOrder
from services.registry.clients import ArtifactCopies
from services.serving_controller.clients.files import ModelFiles
from services.serving_controller.model import Servable
from shared.model_files.adapters import ADAPTER_CONFIG as CONFIG
from shared.model_files.adapters import ADAPTER_WEIGHTS as WEIGHTS
from shared.model_files.adapters import FREE_OPTIONS, PLAIN_OPTIONS, check_adapter
from shared.model_files.models import read_base
from shared.model_files.tensors import TRAINED_DTYPES, BadModel, read_tensors, shapes_of
from shared.storage.testing import FakeObjectStore
from tests.stored import put_base, put_model
from tests.unit.registry.bundles import a_bundle


@pytest.fixture
def check(base_path):
    def run(directory, rank=8):
        check_adapter(directory, shapes_of(read_base(base_path)), rank=rank)

    return run


def test_the_options_are_those_of_peft():
    from peft import LoraConfig

    defaults = LoraConfig(task_type="CAUSAL_LM").to_dict()
    assert {name: value for name, value in defaults.items() if name not in FREE_OPTIONS} == PLAIN_OPTIONS
    assert defaults.keys() >= FREE_OPTIONS


def header_of(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(path, header, data, *, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


def test_a_good_adapter_is_accepted(check, adapter_path):
    check(adapter_path)


async def registry_answer(adapter_path, base_path, tmp_path):
    objects = FakeObjectStore()
    files = {path.name: path.read_bytes() for path in adapter_path.iterdir()}
    copies = ArtifactCopies(objects, scratch=tmp_path / "registry")
    try:
        await copies.copy(await a_bundle(objects, files), shapes_of(read_base(base_path)))
    except BadModel as error:
        return str(error)
    return "accepted"


async def evaluator_answer(adapter_path, base_path, tmp_path):
    from services.evaluator.scoring.models import _check_files
    from services.evaluator.scoring.order import ScoringRefused

    candidate = Candidate(kind="adapter", path=str(adapter_path), rank=8)
    order = WorkOrder(base_path=str(base_path), template_sha256="0" * 64, candidate=candidate, parts=())
    try:
        _check_files(order)
    except ScoringRefused as error:
        return error.failure.message
    return "accepted"


async def serving_answer(adapter_path, base_path, tmp_path):
    objects = FakeObjectStore()
    base_sha = await put_base(objects, base_path)
    digest = await put_model(objects, adapter_path, base_sha=base_sha)
    files = ModelFiles(objects, scratch=tmp_path / "serving")
    servable = Servable("mv-1", "ft:tiny:acme::", "adapter", digest, "tiny", base_sha, 8)
    try:
        await files.adapter(servable, tmp_path / "replica")
    except BadModel as error:
        return str(error)
    return "accepted"


ANSWERS = (registry_answer, evaluator_answer, serving_answer)


async def test_all_services_accept_a_good_adapter(adapter_path, base_path, tmp_path):
    assert [await answer(adapter_path, base_path, tmp_path) for answer in ANSWERS] == ["accepted"] * 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 0), ("r", 9), ("r", "8"), ("r", True), ("r", None), ("r", 8.0), ("r", 10**9),
        ("lora_alpha", 0), ("lora_alpha", -1), ("lora_alpha", math.nan), ("lora_alpha", math.inf), ("lora_alpha", "16"), ("lora_alpha", 1e300), ("lora_alpha", 1e9),
        ("lora_dropout", 1), ("lora_dropout", -0.1),
        ("peft_type", "PROMPT_TUNING"), ("peft_type", "IA3"),
        ("rank_pattern", {"q_proj": 4096}), ("rank_pattern", None), ("alpha_pattern", {"q_proj": 1e9}), ("use_dora", True), ("use_rslora", 1.5),
        ("bias", "all"), ("modules_to_save", ["lm_head"]), ("auto_mapping", {"parent_library": "os"}),
        ("layer_replication", [[0, 1000]]), ("layers_to_transform", [0]), ("fan_in_fan_out", True), ("target_parameters", ["x"]), ("trainable_token_indices", [1]),
        ("target_modules", ".*(a+)+$"), ("target_modules", ".*"), ("target_modules", []), ("target_modules", [1]), ("target_modules", ["../x"]), ("target_modules", None),
        ("init_lora_weights", "pissa"), ("init_lora_weights", "gaussian"), ("megatron_config", {}), ("unknown_field", 1), ("megatron_core", "os"),
    ],
)  # fmt: skip
async def test_all_services_refuse_an_odd_configuration(
    adapter_path, base_path, copy_of, tmp_path, field, value
):
    path = copy_of(adapter_path)
    config = json.loads((path / CONFIG).read_text())
    (path / CONFIG).write_text(json.dumps(config | {field: value}))
    registry, evaluator, serving = [await answer(path, base_path, tmp_path) for answer in ANSWERS]
    assert registry == evaluator == serving
    assert registry.startswith(f"{CONFIG}: {field} is")


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
    with pytest.raises(BadModel):
        check(path)


def test_a_rank_other_than_the_lineage_s_is_refused(check, adapter_path):
    with pytest.raises(BadModel, match="as in the lineage"):
        check(adapter_path, rank=4)


def test_one_matrix_of_a_pair_alone_is_refused(check, adapter_path, copy_of):
    from safetensors.torch import load_file, save_file

    path = copy_of(adapter_path)
    tensors = load_file(path / WEIGHTS)
    lonely = next(name for name in tensors if "lora_B" in name)
    save_file({name: tensor for name, tensor in tensors.items() if name != lonely}, path / WEIGHTS)
    with pytest.raises(BadModel, match="A alone"):
        check(path)


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
            shapes = shapes_of(read_tensors(path, dtypes=TRAINED_DTYPES))
        except BadModel:
            refused += 1
            continue
        with safe_open(path, framework="pt") as file:
            assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == shapes  # noqa: SIM118
    assert refused > 400


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
