import pytest

from schemas.artifacts import FileEntry
from services.registry.decide import adapters
from services.registry.decide.adapters import BadAdapter
from services.registry.decide.weights import TRAINED_DTYPES, header_length, parse_header
from tests.unit.registry.builders import ADAPTER_SHAPES, BASE_SHAPES, adapter_config, safetensors

A, B = ADAPTER_SHAPES


def tensors(shapes):
    content = safetensors(shapes)
    length = header_length(content[:8], file_bytes=len(content))
    return parse_header(content[8 : 8 + length], file_bytes=len(content), dtypes=TRAINED_DTYPES)


def entries(**files):
    return [FileEntry(path=path, size_bytes=1, sha256=sha * 64) for path, sha in files.items()]


def test_accepts_the_adapter_that_the_job_announced():
    adapters.require_files([adapters.WEIGHTS, adapters.CONFIG])
    adapters.require_config(adapter_config(), rank=8)
    adapters.require_tensors(tensors(ADAPTER_SHAPES), rank=8, base=BASE_SHAPES)


@pytest.mark.parametrize(
    "paths",
    [
        [],
        [adapters.CONFIG],
        [adapters.CONFIG, "adapter_model.bin"],
        [adapters.CONFIG, adapters.WEIGHTS, "new_embeddings.safetensors"],
        ["x/adapter_config.json", adapters.WEIGHTS],
    ],
)
def test_refuses_other_files(paths):
    with pytest.raises(BadAdapter, match="expected exactly"):
        adapters.require_files(paths)


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 0},
        {"r": 16},
        {"r": 8.0},
        {"r": True},
        {"lora_alpha": 0},
        {"lora_alpha": float("inf")},
        {"lora_alpha": float("nan")},
        {"lora_alpha": None},
        {"peft_type": "IA3"},
        {"bias": "all"},
        {"use_dora": True},
        {"use_dora": 1},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 512}},
        {"alpha_pattern": {"q_proj": 1}},
        {"modules_to_save": ["lm_head"]},
        {"auto_mapping": {"base_model_class": "X"}},
        {"layer_replication": [[0, 4]]},
    ],
    ids=str,
)
def test_refuses_a_configuration_that_means_something_else(changes):
    with pytest.raises(BadAdapter, match=adapters.CONFIG):
        adapters.require_config(adapter_config(**changes), rank=8)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (adapters.MAX_CONFIG_BYTES + 1)]
)
def test_refuses_a_configuration_that_is_no_object(text):
    with pytest.raises(BadAdapter):
        adapters.require_config(text, rank=8)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "holds no tensor"),
        ({A: (8, 64)}, "expected A and B"),
        ({A: (16, 64), B: (32, 16)}, "expected"),
        ({A: (8, 63), B: (32, 8)}, "lora_A: shape"),
        ({A: (8, 64), B: (33, 8)}, "lora_B: shape"),
        ({A: (8, 64), B: (32, 8), "base_model.model.lm_head.weight": (1, 1)}, "lora_A|B"),
        ({name.replace("q_proj", "x_proj"): shape for name, shape in ADAPTER_SHAPES.items()}, "no matrix"),
        ({"base_model.model.model.norm.lora_A.weight": (8, 64), "base_model.model.model.norm.lora_B.weight": (1, 8)},
         "no matrix"),
    ],
)  # fmt: skip
def test_refuses_tensors_that_do_not_fit_the_base_model(shapes, message):
    with pytest.raises(BadAdapter, match=message.replace("|", r"\|")):
        adapters.require_tensors(tensors(shapes), rank=8, base=BASE_SHAPES)


class TestFullModels:
    def test_accepts_the_base_models_shapes(self):
        adapters.require_full_weights(tensors(BASE_SHAPES), base=BASE_SHAPES)

    def test_accepts_the_tied_head_written_out(self):
        adapters.require_full_weights(tensors({**BASE_SHAPES, "lm_head.weight": (4, 64)}), base=BASE_SHAPES)

    @pytest.mark.parametrize("changes", [{"model.norm.weight": (65,)}, {"extra": (1,)}])
    def test_refuses_other_shapes(self, changes):
        with pytest.raises(BadAdapter, match="differ from the base model's"):
            adapters.require_full_weights(tensors({**BASE_SHAPES, **changes}), base=BASE_SHAPES)

    def test_refuses_a_missing_tensor(self):
        with pytest.raises(BadAdapter, match=r"model\.norm\.weight"):
            adapters.require_full_weights(
                tensors({A: (1,)} | BASE_SHAPES), base={**BASE_SHAPES, A: (1,), "model.norm.weight": (1,)}
            )

    def test_takes_configuration_from_the_base_model_alone(self):
        base = entries(**{"config.json": "a", "tokenizer.json": "b"})
        good = entries(**{"model.safetensors": "c", "config.json": "a"})
        adapters.require_base_files(good, base=base)
        with pytest.raises(BadAdapter, match=r"config\.json"):
            adapters.require_base_files(entries(**{"model.safetensors": "c", "config.json": "d"}), base=base)
        with pytest.raises(BadAdapter, match=r"model\.safetensors among them"):
            adapters.require_base_files(entries(**{"config.json": "a"}), base=base)
