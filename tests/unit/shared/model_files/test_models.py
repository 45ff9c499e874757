"""Base models and full models: no code, no pickle, each tensor once."""

import hashlib
import json

import pytest

from shared.model_files.documents import read_bounded, read_config
from shared.model_files.models import (
    CONFIG,
    FULL_WEIGHTS,
    INDEX,
    check_full,
    digests_beside_weights,
    read_base,
    read_shards,
)
from shared.model_files.tensors import BadModel, shapes_of
from tests.model_files import BASE_SHAPES, safetensors

BASE = {CONFIG: b'{"model_type": "llama"}', "tokenizer.json": b"{}", FULL_WEIGHTS: safetensors(BASE_SHAPES)}
NORM = {"model.norm.weight": BASE_SHAPES["model.norm.weight"]}
HEAD = {"lm_head.weight": (4, 64)}


@pytest.fixture
def base(tmp_path):
    return write(tmp_path / "base", BASE)


def write(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


class TestBaseModels:
    def test_have_the_tensors_of_their_files(self, base):
        assert shapes_of(read_base(base)) == BASE_SHAPES

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("modeling_evil.py", b"print(1)"),
            ("pytorch_model.bin", b"cos\nsystem"),
            (CONFIG, b'{"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}'),
            ("tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}'),
            ("generation_config.json", b"[1]"),
            ("generation_config.json", b"{"),
            ("again.safetensors", BASE[FULL_WEIGHTS]),
            ("broken.safetensors", b"\x80\x02}q\x00."),
        ],
    )
    def test_with_code_or_doubles_are_refused(self, base, name, content):
        write(base, {name: content})
        with pytest.raises(BadModel, match=name.replace("again", "(again|model)")):
            read_base(base)

    def test_without_weights_are_refused(self, base):
        (base / FULL_WEIGHTS).unlink()
        with pytest.raises(BadModel, match=r"no \.safetensors file"):
            read_base(base)

    def test_with_a_symbolic_link_are_refused(self, base, tmp_path):
        write(tmp_path, {"elsewhere.json": b"{}"})
        (base / "link.json").symlink_to(tmp_path / "elsewhere.json")
        with pytest.raises(BadModel, match=r"link\.json"):
            read_base(base)

    @pytest.mark.parametrize(
        ("shards", "message"),
        [
            ({"one": "a", "two": "b"}, ""),
            ({"one": "ab", "three": "c"}, "tensor 'b' is not in 'two.safetensors'"),
            ({"one": "a"}, "tensor 'b' is not in 'two.safetensors'"),
        ],
    )
    def test_agree_with_their_index(self, tmp_path, shards, message):
        files = {
            f"{name}.safetensors": safetensors(dict.fromkeys(names, (1,))) for name, names in shards.items()
        }
        weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
        write(tmp_path, files | {INDEX: json.dumps({"weight_map": weight_map}).encode()})
        if message:
            with pytest.raises(BadModel, match=message):
                read_shards(tmp_path, [*files, INDEX])
        else:
            assert [tensor.name for tensor in read_shards(tmp_path, [*files, INDEX])] == ["a", "b"]

    def test_with_an_index_of_nothing_are_refused(self, base):
        write(base, {INDEX: b"{}"})
        with pytest.raises(BadModel, match="weight_map is missing"):
            read_base(base)

    def test_with_a_text_that_is_too_large_are_refused(self, tmp_path):
        write(tmp_path, {"tokenizer.json": b"12345"})
        assert read_bounded(tmp_path / "tokenizer.json", max_bytes=5) == b"12345"
        with pytest.raises(BadModel, match=r"tokenizer\.json: found 5 bytes, expected at most 4"):
            read_bounded(tmp_path / "tokenizer.json", max_bytes=4)

    def test_name_no_code_in_a_configuration(self, tmp_path):
        write(tmp_path, {CONFIG: b'{"auto_map": {"AutoModel": "x.Y"}}'})
        with pytest.raises(BadModel, match=r"config\.json: auto_map"):
            read_config(tmp_path / CONFIG)


class TestFullModels:
    def check(self, directory, base, shapes=BASE_SHAPES):
        check_full(directory, shapes, digests_beside_weights(base))

    def full(self, tmp_path, shapes=BASE_SHAPES, **files):
        changed = {name.replace("__", "."): content for name, content in files.items()}
        return write(tmp_path / "full", {**BASE, FULL_WEIGHTS: safetensors(shapes), **changed})

    def test_have_the_base_models_shapes(self, base, tmp_path):
        self.check(self.full(tmp_path), base)

    def test_may_have_shapes_as_json_has_them(self, base, tmp_path):
        self.check(self.full(tmp_path), base, {name: list(shape) for name, shape in BASE_SHAPES.items()})

    def test_may_have_the_tied_head_written_out(self, base, tmp_path):
        self.check(self.full(tmp_path, BASE_SHAPES | HEAD), base)

    @pytest.mark.parametrize("changes", [{"model.norm.weight": (65,)}, {"extra": (1,)}])
    def test_with_other_shapes_are_refused(self, base, tmp_path, changes):
        with pytest.raises(BadModel, match="differ from the base model's"):
            self.check(self.full(tmp_path, BASE_SHAPES | changes), base)

    def test_without_a_tensor_are_refused(self, base, tmp_path):
        with pytest.raises(BadModel, match=r"lm_head\.weight"):
            self.check(self.full(tmp_path), base, BASE_SHAPES | HEAD)

    @pytest.mark.parametrize("dtype", ["I32", "F64"])
    def test_of_a_type_that_nothing_is_trained_in_are_refused(self, base, tmp_path, dtype):
        weights = safetensors({"model.norm.weight": (0,)}).replace(b"F32", dtype.encode())
        with pytest.raises(BadModel, match=dtype):
            self.check(self.full(tmp_path, model__safetensors=weights), base)

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            (CONFIG, b"{}"),
            ("tokenizer.json", b"{ }"),
            ("more.json", b"{}"),
            (INDEX, b"{}"),
            ("more.safetensors", safetensors(HEAD)),
            ("code.py", b""),
        ],
    )
    def test_with_another_file_are_refused(self, base, tmp_path, name, content):
        full = write(self.full(tmp_path), {name: content})
        with pytest.raises(BadModel, match=name):
            self.check(full, base)

    def in_two_files(self, tmp_path, weight_map):
        full = self.full(tmp_path)
        (full / FULL_WEIGHTS).unlink()
        rest = {name: shape for name, shape in BASE_SHAPES.items() if name not in NORM}
        files = {"model-1.safetensors": safetensors(rest), "model-2.safetensors": safetensors(NORM)}
        names = dict.fromkeys(rest, "model-1.safetensors") | dict.fromkeys(NORM, "model-2.safetensors")
        return write(full, {**files, INDEX: json.dumps({"weight_map": weight_map(names)}).encode()})

    def test_may_be_in_several_files_with_an_index(self, base, tmp_path):
        self.check(self.in_two_files(tmp_path, dict), base)

    @pytest.mark.parametrize(
        ("weight_map", "reason"),
        [
            (lambda names: names | dict.fromkeys(NORM, "model-1.safetensors"), "is not in"),
            (
                lambda names: {name: names[name] for name in names.keys() - NORM.keys()},
                "norm.weight' is missing",
            ),
            (list, "weight_map is missing"),
        ],
        ids=["wrong file", "no file", "no map"],
    )
    def test_in_several_files_are_refused_where_the_index_is_wrong(self, base, tmp_path, weight_map, reason):
        with pytest.raises(BadModel, match=reason):
            self.check(self.in_two_files(tmp_path, weight_map), base)

    def test_in_several_files_are_refused_without_an_index(self, base, tmp_path):
        full = self.in_two_files(tmp_path, dict)
        (full / INDEX).unlink()
        with pytest.raises(BadModel, match=r"model-1\.safetensors, model-2\.safetensors, expected"):
            self.check(full, base)

    @pytest.mark.parametrize("name", [CONFIG, FULL_WEIGHTS])
    def test_without_a_file_are_refused(self, base, tmp_path, name):
        full = self.full(tmp_path)
        (full / name).unlink()
        with pytest.raises(BadModel, match=name):
            self.check(full, base)


def test_digests_leave_the_weights_out(base):
    assert digests_beside_weights(base) == {
        name: hashlib.sha256(BASE[name]).hexdigest() for name in (CONFIG, "tokenizer.json")
    }
