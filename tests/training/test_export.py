"""Exports of model versions: arithmetic of merges, files that are loaded as they are, and what is refused."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from services.registry.decide.exports import judge
from services.registry.export import gguf_file, merging
from services.registry.export.gguf_file import rope_factors, write_gguf
from services.registry.export.merging import NotExportable, Pair, Weights, read_pairs
from services.registry.export.order import WRITTEN, Impossible
from services.registry.export.run import GGUF_FILE
from tests.chaos.scale import at_night
from tests.training.merges import an_order, build_base, carry_out, write_trained

OFTEN = ("Llama", "Qwen 3 MoE")
RARELY = ("Qwen 2", "Qwen 2.5", "Qwen 3", "Phi-3", "Gemma 2", "Gemma 3", "OLMo 2", "Granite", "Mistral")
FAMILIES = [*OFTEN, *(pytest.param(name, marks=at_night("many families")) for name in RARELY)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """A folder with a base model, `base`, and an adapter on it, `model`."""
    directory = tmp_path_factory.mktemp("llama")
    write_trained(directory / "model", build_base(directory / "base", "Llama"))
    return directory


class TestMergedWeights:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_are_those_of_peft_rounded_once_to_the_bases_type(self, family, tmp_path):
        base = build_base(tmp_path / "base", family)
        model = write_trained(tmp_path / "model", base)
        report = carry_out(an_order(base, model), tmp_path / "work")
        parity = judge(report.distances, "safetensors", None)
        assert parity.passed, parity
        merged = load_file(tmp_path / "work" / WRITTEN / "model.safetensors")
        before = load_file(base / "model.safetensors")
        assert merged.keys() == before.keys()
        whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        expected = PeftModel.from_pretrained(whole, model).merge_and_unload(safe_merge=True).state_dict()
        changed = [name for name in merged if not torch.equal(merged[name], before[name])]
        assert {name.split(".")[-2] for name in changed} == set(adapted(model))
        for name in changed:
            assert merged[name].dtype == torch.bfloat16
            exact = expected[name]
            step = torch.finfo(torch.bfloat16).eps * exact.abs() / 2 + 1e-6
            assert ((merged[name].float() - exact).abs() <= step).all(), name

    def test_in_float32_equal_pefts_with_a_rank_stabilized_scale(self, tmp_path):
        base = build_base(tmp_path / "base", "Llama", dtype=torch.float32)
        model = write_trained(tmp_path / "model", base, use_rslora=True)
        carry_out(an_order(base, model), tmp_path / "work")
        merged = load_file(tmp_path / "work" / WRITTEN / "model.safetensors")
        whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        expected = PeftModel.from_pretrained(whole, model).merge_and_unload().state_dict()
        assert all(torch.allclose(merged[name], expected[name], atol=1e-6) for name in merged)

    def test_of_a_few_rows_at_a_time_are_the_same(self, llama, tmp_path, monkeypatch):
        whole, chunks = tmp_path / "whole", tmp_path / "chunks"
        carry_out(an_order(llama / "base", llama / "model"), whole)
        monkeypatch.setattr(merging, "CHUNK_VALUES", 128 * 3)
        carry_out(an_order(llama / "base", llama / "model"), chunks)
        first, second = (load_file(each / WRITTEN / "model.safetensors") for each in (whole, chunks))
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_of_several_files_keep_the_index_and_what_lies_beside(self, llama, tmp_path):
        base = tmp_path / "base"
        shutil.copytree(llama / "base", base)
        AutoModelForCausalLM.from_pretrained(base).save_pretrained(base, max_shard_size="200KB")
        (base / "model.safetensors").unlink()
        (base / "training_template.jinja").write_text("of training alone")
        report = carry_out(an_order(base, llama / "model"), tmp_path / "work")
        assert judge(report.distances, "safetensors", None).passed
        out = tmp_path / "work" / WRITTEN
        names = {path.name for path in base.iterdir()} - {"training_template.jinja"}
        assert {path.name for path in out.iterdir()} == names
        assert len([name for name in names if name.endswith(".safetensors")]) > 2
        for name in names:
            if not name.endswith(".safetensors"):
                assert (out / name).read_bytes() == (base / name).read_bytes()

    def test_generate_what_the_adapter_generates(self, llama, tmp_path):
        carry_out(an_order(llama / "base", llama / "model"), tmp_path / "work")
        out = tmp_path / "work" / WRITTEN
        tokenizer = AutoTokenizer.from_pretrained(out)
        asked = tokenizer("def times_7(x): return", return_tensors="pt")
        trained = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(llama / "base", dtype=torch.float32), llama / "model"
        )
        merged = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        answers = [each.generate(**asked, max_new_tokens=12, do_sample=False) for each in (trained, merged)]
        assert torch.equal(*answers)


class TestFullModels:
    def test_are_exported_as_they_were_trained(self, llama, tmp_path):
        model = tmp_path / "model"
        model.mkdir()
        tensors = {
            name: each.float() * 1.1 for name, each in load_file(llama / "base/model.safetensors").items()
        }
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        shutil.copyfile(llama / "base/config.json", model / "config.json")
        for file_format in ("safetensors", "gguf"):
            order = an_order(llama / "base", model, file_format, kind="full", rank=0)
            report = carry_out(order, tmp_path / file_format)
            parity = judge(report.distances, file_format, order.quantization)
            assert parity.passed, parity
            assert parity.training_kl is None
        out = tmp_path / "safetensors" / WRITTEN
        assert (out / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
        assert (out / "tokenizer.json").read_bytes() == (llama / "base/tokenizer.json").read_bytes()


class TestGguf:
    @pytest.mark.parametrize(
        "family",
        [
            "Llama",
            *(
                pytest.param(name, marks=at_night("many families"))
                for name in ("Qwen 2", "Qwen 2.5", "Qwen 3")
            ),
        ],
    )
    @pytest.mark.parametrize("quantization", ["f16", "q8_0"])
    def test_answers_as_the_trained_model_when_it_is_read_again(self, family, quantization, tmp_path):
        base = build_base(tmp_path / "base", family)
        model = write_trained(tmp_path / "model", base)
        order = an_order(base, model, "gguf", quantization=quantization)
        parity = judge(carry_out(order, tmp_path / "work").distances, "gguf", quantization)
        assert parity.passed, parity
        assert parity.equal_token_ids is (family in ("Llama", "Qwen 3"))
        file = gguf.GGUFReader(tmp_path / "work" / WRITTEN / GGUF_FILE)
        template = (base / "chat_template.jinja").read_text()
        assert file.fields["tokenizer.chat_template"].contents() == template
        assert file.fields["tokenizer.ggml.pre"].contents() == "gpt-2"
        kinds = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
        assert kinds["blk.0.attn_q.weight"] == quantization.upper()
        assert kinds["blk.0.attn_norm.weight"] == "F32"

    def test_in_four_bits_keeps_embedding_and_head_in_eight(self, llama, tmp_path):
        order = an_order(llama / "base", llama / "model", "gguf", quantization="q4_0")
        assert carry_out(order, tmp_path / "work").distances.is_finite
        kinds = kinds_of(tmp_path / "work" / WRITTEN / GGUF_FILE)
        assert [kinds[name] for name in ("blk.1.ffn_down.weight", "token_embd.weight", "output.weight")] == [
            "Q4_0", "Q8_0", "Q8_0",
        ]  # fmt: skip

    def test_keeps_rows_without_whole_blocks_in_16_bits(self, llama, tmp_path):
        base = tmp_path / "base"
        shutil.copytree(llama / "base", base)
        config = json.loads((base / "config.json").read_text()) | {"intermediate_size": 200}
        (base / "config.json").write_text(json.dumps(config))
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base)).save_pretrained(base)
        path = tmp_path / "model.gguf"
        weights = Weights(base, {})
        write_gguf(base, weights, path, quantization="q8_0", name="x", advance=lambda num_bytes: None)
        kinds = kinds_of(path)
        assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")

    def test_has_the_factors_by_which_llama_3_scales_its_rotation(self, llama, tmp_path):
        base = tmp_path / "base"
        shutil.copytree(llama / "base", base)
        config = json.loads((base / "config.json").read_text())
        config["rope_parameters"] = {
            "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
        }  # fmt: skip
        (base / "config.json").write_text(json.dumps(config))
        order = an_order(base, llama / "model", "gguf")
        assert judge(carry_out(order, tmp_path / "work").distances, "gguf", "f16").passed
        file = gguf.GGUFReader(tmp_path / "work" / WRITTEN / GGUF_FILE)
        written = next(tensor.data for tensor in file.tensors if tensor.name == "rope_freqs.weight")
        factors = rope_factors(AutoConfig.from_pretrained(base))
        assert np.array_equal(written, factors)
        assert (factors[0], factors[-1]) == (1.0, 8.0)
        assert ((factors > 0.999) & (factors < 8.001)).all()


class TestParity:
    """What is wrong by a little is found: each of these still gives a model that speaks."""

    def test_fails_where_the_adapter_is_merged_with_another_factor(self, llama, tmp_path, monkeypatch):
        def read_doubled(directory: Path) -> dict[str, Pair]:
            return {
                name: Pair(each.a_RI, each.b_OR, 2 * each.scale)
                for name, each in read_pairs(directory).items()
            }

        monkeypatch.setattr("services.registry.export.run.read_pairs", read_doubled)
        assert not passes(llama, tmp_path)

    def test_fails_where_the_adapter_of_a_layer_is_left_out(self, llama, tmp_path, monkeypatch):
        def read_some(directory: Path) -> dict[str, Pair]:
            return {name: each for name, each in read_pairs(directory).items() if ".layers.1." not in name}

        monkeypatch.setattr("services.registry.export.run.read_pairs", read_some)
        assert not passes(llama, tmp_path)

    def test_fails_where_an_adapter_that_learned_little_is_left_out(self, llama, tmp_path, monkeypatch):
        model = write_trained(tmp_path / "model", llama / "base", spread=0.01)
        monkeypatch.setattr("services.registry.export.run.read_pairs", lambda directory: {})
        distances = carry_out(an_order(llama / "base", model), tmp_path / "work").distances
        assert distances.mean_kl == pytest.approx(distances.training_kl, rel=0.01)
        assert distances.mean_kl < 1e-3
        assert not judge(distances, "safetensors", None).passed

    def test_fails_where_rows_are_in_the_order_of_another_rotation(self, llama, tmp_path, monkeypatch):
        of_qwen = gguf_file.Architecture(gguf.MODEL_ARCH.LLAMA, rotates_pairs=False)
        monkeypatch.setitem(gguf_file.ARCHITECTURES, "llama", of_qwen)
        assert not passes(llama, tmp_path, "gguf")


class TestRefusals:
    def test_of_a_family_that_is_not_written_as_gguf_names_those_that_are(self, tmp_path):
        base = build_base(tmp_path / "base", "Phi-3")
        model = write_trained(tmp_path / "model", base)
        report = carry_out(an_order(base, model, "gguf"), tmp_path / "work")
        assert report == Impossible(
            code="not_exportable",
            message="family phi3 cannot be written as GGUF; llama, qwen2, qwen3 can",
        )

    def test_of_a_tokenizer_that_llama_cpp_would_not_split_alike(self, llama, tmp_path):
        base = tmp_path / "base"
        shutil.copytree(llama / "base", base)
        tokenizer = json.loads((base / "tokenizer.json").read_text())
        split = {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated", "invert": False}
        tokenizer["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [split, tokenizer["pre_tokenizer"]],
        }
        (base / "tokenizer.json").write_text(json.dumps(tokenizer))
        report = carry_out(an_order(base, llama / "model", "gguf"), tmp_path / "work")
        assert "splits texts in a way that llama.cpp has no name for" in report.message

    def test_of_an_adapter_that_is_no_plain_one(self, llama, tmp_path):
        model = write_trained(tmp_path / "model", llama / "base", use_dora=True)
        report = carry_out(an_order(llama / "base", model), tmp_path / "work")
        assert (report.code, report.message) == (
            "bad_model",
            "adapter_config.json: use_dora is True, expected False",
        )

    def test_of_a_weight_that_is_not_there(self, llama):
        pairs = {"model.layers.9.mlp.up_proj.weight": Pair(torch.zeros(1, 1), torch.zeros(1, 1), 1.0)}
        with pytest.raises(NotExportable, match=r"have no model\.layers\.9\.mlp\.up_proj\.weight"):
            merging.write_merged(llama / "base", pairs, llama, lambda num_bytes: None)

    def test_of_values_that_16_bits_cannot_hold(self, llama, tmp_path):
        base = tmp_path / "base"
        shutil.copytree(llama / "base", base)
        tensors = load_file(base / "model.safetensors")
        tensors["lm_head.weight"][3, 3] = 1e5
        save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
        report = carry_out(an_order(base, llama / "model", "gguf"), tmp_path / "work")
        assert report.message == "tensor output.weight has values beyond the range of 16 bit floats"


def passes(llama: Path, tmp_path: Path, file_format: str = "safetensors") -> bool:
    order = an_order(llama / "base", llama / "model", file_format)
    return judge(carry_out(order, tmp_path / "work").distances, file_format, order.quantization).passed


def adapted(model: Path) -> list[str]:
    names: list[str] = json.loads((model / "adapter_config.json").read_text())["target_modules"]
    return names


def kinds_of(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
