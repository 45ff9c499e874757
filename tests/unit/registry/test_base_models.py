import hashlib
from dataclasses import replace

import pytest

from schemas.model import (
    NO_TEMPLATE_SHA256,
    AdaptersStale,
    BaseModelRegistered,
    DeploymentWithdrawn,
    Stage,
)
from services.registry.decide import base_models, slots
from services.registry.decide.base_models import BadBaseModel, register
from services.registry.model import BaseModel, Slot
from tests.builders import capabilities
from tests.unit.registry.builders import BASE_SHA, OTHER_SHA, a_version

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def a_base(sha=BASE_SHA):
    return BaseModel("tiny", sha, "1" * 64, "directory", "f" * 64, 512, 1000)


class TestChooseFiles:
    def test_leaves_behind_what_no_one_loads(self):
        chosen = base_models.choose_files([*FILES, "README.md", ".gitattributes", "LICENSE", "logo.png"])
        assert chosen == tuple(sorted(FILES))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("modeling_tiny.py", "code of its own"),
            ("ext.SO", "code of its own"),
            ("pytorch_model.bin", "expected weights as .safetensors"),
            ("model.gguf", "expected weights as .safetensors"),
            ("state.PTH", "expected weights as .safetensors"),
        ],
    )
    def test_refuses_code_and_other_weights(self, name, message):
        with pytest.raises(BadBaseModel, match=message):
            base_models.choose_files([*FILES, name])

    @pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_refuses_a_model_without(self, missing):
        with pytest.raises(BadBaseModel):
            base_models.choose_files([name for name in FILES if name != missing])


class TestConfiguration:
    @pytest.mark.parametrize(
        ("config", "tokens"),
        [
            ({"max_position_embeddings": 512}, 512),
            ({"n_positions": 1024}, 1024),
            ({"max_position_embeddings": 0, "n_positions": 1}, 1),
            ({"text_config": {"max_position_embeddings": 8}}, 8),
        ],
    )
    def test_finds_the_context(self, config, tokens):
        assert base_models.context_tokens(config) == tokens

    @pytest.mark.parametrize(
        "config",
        [{}, {"max_position_embeddings": "many"}, {"max_position_embeddings": True}, {"text_config": 3}],
    )
    def test_refuses_a_configuration_without_context(self, config):
        with pytest.raises(BadBaseModel, match="max_position_embeddings"):
            base_models.context_tokens(config)


class TestTemplate:
    def test_is_known_by_the_sha_of_its_text_wherever_it_is_kept(self):
        expected = hashlib.sha256(b"{{ x }}").hexdigest()
        named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ x }}"}]
        assert base_models.template_sha256(b"{{ x }}", {}) == expected
        assert base_models.template_sha256(None, {"chat_template": "{{ x }}"}) == expected
        assert base_models.template_sha256(None, {"chat_template": named}) == expected

    @pytest.mark.parametrize(
        ("template", "config"),
        [
            (b" \n", {}),
            (None, {"chat_template": " "}),
            (None, {"chat_template": [{}]}),
            (None, {"chat_template": 3}),
        ],
    )
    def test_must_say_something(self, template, config):
        with pytest.raises(BadBaseModel, match="chat"):
            base_models.template_sha256(template, config)

    @pytest.mark.parametrize("config", [{}, {"chat_template": None}])
    def test_may_be_absent(self, config):
        assert base_models.template_sha256(None, config) == NO_TEMPLATE_SHA256


class TestTrainingTemplate:
    MARKED = b"{% generation %}{{ x }}{% endgeneration %}"

    def test_is_known_by_the_sha_of_its_text(self):
        assert base_models.training_sha256(None) is None
        assert base_models.training_sha256(self.MARKED) == hashlib.sha256(self.MARKED).hexdigest()

    @pytest.mark.parametrize(
        ("text", "message"), [(b"{{ x }}", r"no \{% generation %\} block"), (b"\xff", "expected UTF-8")]
    )
    def test_must_mark_something(self, text, message):
        with pytest.raises(BadBaseModel, match=message):
            base_models.training_sha256(text)


class TestRegister:
    def test_announces_a_new_name(self):
        base = replace(a_base(), training_template_sha256="7" * 64, capabilities=capabilities())
        (fact,) = register(base, None).events
        assert isinstance(fact, BaseModelRegistered)
        assert fact.capabilities == base.capabilities
        assert (fact.template_sha256, fact.training_template_sha256) == ("f" * 64, "7" * 64)

    def test_answers_the_same_files_again_without_harm(self):
        registration = register(a_base(), a_base())
        assert [type(event) for event in registration.events] == [BaseModelRegistered]
        assert registration.stale_sha is None

    def test_marks_what_was_trained_on_other_files_and_stops_serving_it(self):
        registration = register(a_base(OTHER_SHA), a_base())
        stale, registered = registration.events
        assert isinstance(stale, AdaptersStale)
        assert (stale.stale_sha, stale.new_sha, registration.stale_sha) == (BASE_SHA, OTHER_SHA, BASE_SHA)
        assert registered.base_sha == OTHER_SHA
        served = a_version(stage=Stage.STAGING)
        slot = slots.approve(Slot("acme", served.full_name), served, job_id=None).slot
        decision = base_models.withdraw(slot, a_base(OTHER_SHA), BASE_SHA)
        (withdrawn,) = decision.events
        assert isinstance(withdrawn, DeploymentWithdrawn)
        assert withdrawn.reason == f"base model tiny changed from {BASE_SHA[:12]} to {OTHER_SHA[:12]}"
        assert decision.slot.desired is None
