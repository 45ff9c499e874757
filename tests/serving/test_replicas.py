"""Real vLLM on a real, tiny model: what the serving controller promises of a replica. Tests share one process
and run in order."""

import asyncio
import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.numpy import load_file, save_file

from schemas.deployment import AdapterLoaded, ReplicaLost, ReplicaReady
from services.serving_controller.clients.backend import ReplicaSpec
from services.serving_controller.clients.files import LocalFiles, ModelFiles
from services.serving_controller.clients.local import LocalBackend
from services.serving_controller.clients.probe import PROMPTS
from services.serving_controller.clients.vllm import Answer
from services.serving_controller.model import Phase, ReplicaSet, Servable
from services.serving_controller.replica_metrics import PASSED_ON, ReplicaMetrics
from shared.clock import utc_now
from shared.processes.identity import Identity
from tests.serving.conftest import CLOSE, MAX_ADAPTERS, START_SECONDS, Rig, far_from_the_reference

pytestmark = [pytest.mark.any_device, pytest.mark.torch]


def resident_mib(rig: Rig, replica_id: str) -> int:
    leader = int((rig.backend.folder(replica_id) / "pid").read_text().split()[0])
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                rollup = (stat.parent / "smaps_rollup").read_text()
                total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        except OSError:
            continue
    return total // 1024


@pytest.fixture(scope="module")
async def first(rig: Rig) -> Servable:
    # tests/serving/test_families.py serves plain ones.
    return await rig.an_adapter(1, use_rslora=True)


def in_two_files(base_dir: Path, directory: Path) -> Path:
    """The same model with its weights in two files, as two training processes write it."""
    shutil.copytree(base_dir, directory)
    tensors = load_file(base_dir / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


async def test_a_replica_of_the_base_model_comes_up_and_is_announced(
    rig: Rig, device, tmp_path, record_property
):
    full_dir = in_two_files(rig.base_dir, tmp_path / "full")
    full_digest = await rig.store(full_dir, "full")
    full = Servable(
        "mv-f", f"ft:tiny:acme:full:{full_digest[:8]}", "full", full_digest, "tiny", rig.base_sha, 0
    )
    own = ReplicaSet(full.replica_set, rig.base_sha, full=full, num_replicas=1)
    began = time.monotonic()
    replica, own_replica = await asyncio.gather(rig.converge(rig.replica_set()), rig.converge(own))
    record_property("two replicas ready after, s", round(time.monotonic() - began, 1))
    record_property("memory of a replica, MiB", resident_mib(rig, replica.replica_id))
    ready, ready_full = sorted(rig.facts_of(ReplicaReady), key=lambda fact: fact.base_model != "tiny")
    assert (ready.base_model, ready.base_sha, ready.replica.url) == (
        "tiny",
        rig.base_sha,
        replica.address.url,
    )
    assert (ready_full.base_model, ready_full.served_base) == (full.full_name, full.served_name)
    assert own_replica.loaded == {full.served_name}
    assert (ready.engine, ready.device) == ((await rig.backend.engine("")).name, device)
    base = await rig.client(replica).answer(replica.served_base, PROMPTS[0])
    same = await rig.client(own_replica).answer(full.served_name, PROMPTS[0])
    assert same.distance(base) < CLOSE
    # Not wanted any more: it is ended, said to be lost, and forgotten.
    while own_replica.replica_id in rig.replicas:
        await rig.round(ReplicaSet(own.name, own.base_sha))
    assert [lost.replica.incarnation for lost in rig.facts_of(ReplicaLost)] == [
        own_replica.address.incarnation
    ]
    rig.facts.clear()


async def test_it_listens_on_this_machine_alone_and_asks_for_its_key(rig: Rig):
    replica = rig.replica(rig.replica_set())
    answer = await rig.http.get(f"{replica.address.url}/v1/models")
    assert answer.status_code == 401
    answer = await rig.http.post(
        f"{replica.address.url}/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "/x"}
    )
    assert answer.status_code == 401
    adapter = {"name": "x", "src": "/x"}
    answer = await rig.http.post(f"{replica.address.url}/adapters", json=adapter)
    assert answer.status_code == 401
    key = rig.backend.key(replica.replica_id)
    answer = await rig.http.post(
        f"{replica.address.url}/adapters", json=adapter, headers={"authorization": f"Bearer {key}"}
    )
    assert answer.status_code == 404
    process = Path(f"/proc/{_leader(rig).pid}")
    for secret in (key, rig.backend.management_key(replica.replica_id)):
        assert secret not in (process / "cmdline").read_text() + (process / "environ").read_text()


async def test_it_shows_all_metrics_that_are_passed_on(rig: Rig):
    replica = rig.replica(rig.replica_set())
    await rig.client(replica).answer(replica.served_base, PROMPTS[0])
    metrics = ReplicaMetrics(rig.backend, rig.http)
    await metrics.read()
    families = {family.name: family for family in metrics.collect()}
    for known in PASSED_ON:
        family = families[known.name]
        labels = {name for sample in family.samples for name in sample.labels if name != "le"}
        assert (family.type, labels) == (known.kind, set(known.labels)), known.name
        assert {sample.labels["replica"] for sample in family.samples} == {replica.replica_id}
    (generated,) = families["vllm:generation_tokens"].samples
    assert (generated.name, generated.labels["model_name"]) == (
        "vllm:generation_tokens_total",
        replica.served_base,
    )
    assert generated.value >= 4


async def test_a_tool_that_has_to_be_called_is_called_whole_and_in_pieces(rig: Rig):
    replica = rig.replica(rig.replica_set())
    schema = {"type": "object", "properties": {"city": {"enum": ["Bonn"]}}, "required": ["city"]}
    parameters = schema | {"additionalProperties": False}
    function = {"name": "weather", "parameters": parameters, "strict": True}
    body = {
        "model": replica.served_base,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 100,
        "temperature": 1,
        "seed": 1,
    }
    url = f"{replica.address.url}/v1/chat/completions"
    headers = {"authorization": f"Bearer {rig.backend.key(replica.replica_id)}"}
    whole = (await rig.http.post(url, json=body, headers=headers)).json()
    assert "tool_calls" in whole["choices"][0]["message"], whole
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "weather",
        {"city": "Bonn"},
    )
    streamed = (await rig.http.post(url, json=body | {"stream": True}, headers=headers)).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert json.loads("".join(piece["function"].get("arguments", "") for piece in pieces)) == {"city": "Bonn"}


def _leader(rig: Rig) -> Identity:
    return Identity.parse((rig.backend.folder(rig.replica(rig.replica_set()).replica_id) / "pid").read_text())


async def test_an_adapter_is_loaded_read_back_probed_and_answers_as_it_was_trained(
    rig: Rig, first: Servable, record_property
):
    replica = await rig.converge(rig.replica_set(first))
    (fact,) = rig.facts_of(AdapterLoaded)
    record_property("adapter loaded in, ms", round(fact.load_seconds * 1000))
    assert (fact.served_name, fact.digest) == (first.served_name, first.digest)
    client = rig.client(replica)
    assert first.served_name in await client.models()
    answer = await client.answer(first.served_name, PROMPTS[0])
    assert _far_from_the_reference(rig, answer, 1) < CLOSE
    base = await client.answer(replica.served_base, PROMPTS[0])
    assert _far_from_the_reference(rig, base, None) < CLOSE
    assert answer.distance(base) > 0.01


def _far_from_the_reference(rig: Rig, answer: Answer, adapter: int | None) -> float:
    adapter_dir = None if adapter is None else rig.scratch / f"adapter-{adapter}"
    return far_from_the_reference(answer, rig.base_dir, adapter_dir)


async def test_base_answers_are_right_in_batches_with_as_many_adapters_as_fit(rig: Rig, first: Servable):
    adapters = [first, *[await rig.an_adapter(number, gain=2.0) for number in range(2, 1 + MAX_ADAPTERS)]]
    replica = await rig.converge(rig.replica_set(*adapters))
    client = rig.client(replica)
    alone = [await client.answer(replica.served_base, prompt) for prompt in PROMPTS]
    tuned = [(adapter.served_name, PROMPTS[0]) for adapter in adapters]
    base = [(replica.served_base, prompt) for prompt in PROMPTS]
    for _ in range(6):
        answers = await asyncio.gather(*(client.answer(*question) for question in (*tuned, *base)))
        together = answers[len(tuned) :]
        assert max(a.distance(b) for a, b in zip(together, alone, strict=True)) < CLOSE
        assert min(answer.distance(alone[0]) for answer in answers[: len(tuned)]) > 0.01


async def test_what_is_not_wanted_is_unloaded_and_its_files_go(rig: Rig, first: Servable):
    replica = await rig.converge(rig.replica_set(first))
    assert [name for name in await rig.client(replica).models() if "ft:" in name] == [first.served_name]
    kept = {
        path.name[:64] for path in (rig.backend.folder(replica.replica_id) / "adapters").glob("?" * 64 + "-*")
    }
    assert kept == {first.digest}


async def test_an_adapter_that_changes_nothing_fails_its_probe(rig: Rig, first: Servable):
    idle = await rig.an_adapter(20, gain=0.0)
    await rig.round(rig.replica_set(first, idle))
    assert rig.failures.pop(idle.served_name).code == "probe"
    assert idle.served_name not in await rig.client(rig.replica(rig.replica_set())).models()


async def test_an_adapter_that_does_not_fit_the_base_leaves_the_replica_serving(rig: Rig, first: Servable):
    odd = await rig.an_adapter(21, q_proj=(96, 64))
    await rig.round(rig.replica_set(first, odd))
    failure = rig.failures.pop(odd.served_name)
    assert failure.code == "load"
    assert "96" in failure.reason
    replica = await rig.converge(rig.replica_set(first))
    await rig.client(replica).answer(first.served_name, PROMPTS[0])


async def test_bytes_that_are_not_what_was_approved_never_reach_vllm(rig: Rig, first: Servable):
    forged = replace(first, digest="0" * 64)
    await rig.round(rig.replica_set(first, forged))
    assert rig.failures.pop(forged.served_name).code == "load"


async def test_a_controller_that_starts_again_finds_the_replica_as_it_is(rig: Rig, first: Servable):
    before = await rig.converge(rig.replica_set(first))
    rig.facts.clear()
    again = LocalBackend(rig.scratch / "replicas", rig.scratch / "keys", engine=rig.backend._engine)
    steps = type(rig.steps)(
        again,
        LocalFiles(ModelFiles(rig.objects, scratch=rig.scratch / "other"), rig.backend.folder),
        rig.http,
        policy=rig.policy,
        clock=utc_now,
    )
    assert await again.list_owned() == [before.replica_id]
    assert await steps.inspect(before) == before


async def test_a_killed_replica_comes_back_with_the_same_adapters(rig: Rig, first: Servable, record_property):
    before = await rig.converge(rig.replica_set(first))
    rig.facts.clear()
    # Only the process that answers: its engine survives, and must not be left behind.
    leader = _leader(rig)
    leader.signal_alone(signal.SIGKILL)
    began = time.monotonic()
    while rig.replica(rig.replica_set()).phase is Phase.READY:
        await rig.round(rig.replica_set(first))
    after = await rig.converge(rig.replica_set(first))
    record_property("replica with its adapter back after, s", round(time.monotonic() - began, 1))
    (lost,) = rig.facts_of(ReplicaLost)
    assert lost.replica.incarnation == before.address.incarnation
    assert after.address.incarnation != before.address.incarnation
    assert [type(fact) for fact in rig.facts] == [ReplicaLost, ReplicaReady, AdapterLoaded]
    assert after.loaded == {first.served_name}
    assert after.served_base == before.served_base
    answer = await rig.client(after).answer(first.served_name, PROMPTS[0])
    assert _far_from_the_reference(rig, answer, 1) < CLOSE
    assert [*leader.session()] == []


async def test_its_port_is_held_by_the_server_alone(rig: Rig):
    """An engine that outlives its server must not accept requests that nobody answers."""
    leader, port = _leader(rig), httpx.URL(rig.replica(rig.replica_set()).address.url).port
    holders = {
        process.pid
        for process in leader.session()
        for each in psutil.Process(process.pid).net_connections("tcp")
        if (each.status, each.laddr.port) == (psutil.CONN_LISTEN, port)
    }
    assert len([*leader.session()]) > 1
    assert holders == {leader.pid}


async def test_ending_it_leaves_no_process(rig: Rig):
    replica = rig.replica(rig.replica_set())
    leader = _leader(rig)
    await rig.backend.end(replica.replica_id)
    assert await rig.backend.inspect(replica.replica_id) is None
    assert [*leader.session()] == []


async def test_all_of_it_ends_with_the_lease_of_its_devices(rig: Rig):
    spec = ReplicaSpec("leased-0", "first", rig.base_dir, "tiny", 8, lease_seconds=3600.0)
    await rig.backend.start(spec)
    pid_file = rig.backend.folder(spec.replica_id) / "pid"

    async def session(count: int) -> list[Identity]:
        """Its processes, once there are so many: the server, and the engine that it starts."""
        until = time.monotonic() + START_SECONDS
        while True:
            processes = [*Identity.parse(pid_file.read_text()).session()] if pid_file.exists() else []
            if min(len(processes), 2) == count:
                return processes
            assert time.monotonic() < until, await rig.backend.log_tail(spec.replica_id)
            await asyncio.sleep(0.2)

    await session(2)
    await rig.backend.extend(spec.replica_id, 0.0)
    await session(0)
    await rig.backend.end(spec.replica_id)
