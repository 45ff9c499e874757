from dataclasses import replace

import pytest

from schemas.exports import GGUF_FAMILIES, ExportedFile, estimated_bytes, export_id
from schemas.model import (
    DeleteExport,
    ExportModel,
    ModelExportDeleted,
    ModelExported,
    ModelExportFailed,
    ModelExportStarted,
)
from services.registry.decide import exports
from services.registry.model import BaseFacts, Distances, ExportState
from shared.errors import Refused
from tests.unit.registry.builders import a_version

GIB = 1024**3
LLAMA = BaseFacts(num_parameters=8_000_000_000, family="llama", weights_dtype="BF16", vocab_size=128_256)
FILES = (ExportedFile(path="model.gguf", size_bytes=10, sha256="a" * 64),)


def asked(file_format="gguf", quantization=None):
    version = a_version()
    return ExportModel(
        model_id=version.model_id, tenant=version.tenant, format=file_format, quantization=quantization
    )


def distances(**changes):
    fields = {
        "num_tokens": 2_500, "max_difference": 0.1, "mean_difference": 0.01, "mean_kl": 5e-5, "max_kl": 1e-3,
        "training_kl": 0.1, "equal_next_tokens": 0.99, "equal_token_ids": None, "is_finite": True,
    }  # fmt: skip
    return Distances(**fields | changes)


def started(command=None, *, known=None, base=LLAMA):
    return exports.start(a_version(), command or asked(), known, base)


class TestStart:
    def test_names_an_export_by_version_and_variant(self):
        decision = started(asked("gguf", "q8_0"))
        job = a_version().model_id.removeprefix("mv-")
        assert decision.export.export_id == f"export-{job}-gguf-q8_0"
        assert decision.starts
        assert isinstance(decision.event, ModelExportStarted)

    def test_takes_16_bits_where_no_type_is_asked(self):
        assert started().export.quantization == "f16"
        assert started(asked("safetensors")).export.quantization is None

    @pytest.mark.parametrize(
        ("state", "fact"), [(ExportState.RUNNING, ModelExportStarted), (ExportState.READY, ModelExported)]
    )
    def test_answers_with_the_one_that_there_is(self, state, fact):
        known = replace(
            started().export, state=state, files=FILES, parity=exports.judge(distances(), "gguf", "f16")
        )
        decision = started(known=known)
        assert (decision.export, decision.starts) == (known, False)
        assert isinstance(decision.event, fact)

    def test_begins_one_that_failed_again(self):
        first = started().export
        failed = exports.failed(a_version(), first, code="no_room", message="memory").export
        assert (started(known=failed).export, started(known=failed).starts) == (first, True)

    def test_waits_until_a_deleted_one_is_gone(self):
        with pytest.raises(Refused, match="is being deleted"):
            started(known=replace(started().export, state=ExportState.DELETING))

    def test_refuses_a_family_that_no_test_has_shown_and_names_the_others(self):
        with pytest.raises(Refused) as refused:
            started(base=replace(LLAMA, family="phi3"))
        assert refused.value.code == "format_not_available"
        assert all(family in refused.value.message for family in GGUF_FAMILIES)
        assert started(asked("safetensors"), base=replace(LLAMA, family="phi3")).starts

    def test_leaves_a_base_that_was_never_looked_at_to_its_files(self):
        assert started(base=BaseFacts(1, None, None, None)).starts

    def test_refuses_another_type_of_safetensors(self):
        with pytest.raises(Refused, match="safetensors keep the base model's type"):
            started(asked("safetensors", "q8_0"))


class TestDelete:
    def command(self, **changes):
        fields = {"model_id": a_version().model_id, "tenant": "acme", "export_id": "export-x"}
        return DeleteExport(**fields | changes)

    def test_announces_what_nobody_can_download_any_more(self):
        known = replace(started().export, state=ExportState.FAILED)
        deleted = exports.delete(a_version(), self.command(), known)
        assert deleted.state is ExportState.DELETING
        assert isinstance(exports.fact_of(a_version(), deleted), ModelExportDeleted)

    @pytest.mark.parametrize("known", [None, replace(started().export, model_id="mv-other")])
    def test_knows_those_of_its_version_alone(self, known):
        with pytest.raises(Refused) as refused:
            exports.delete(a_version(), self.command(), known)
        assert refused.value.code == "unknown_export"

    def test_refuses_one_that_is_under_way(self):
        with pytest.raises(Refused, match="is under way"):
            exports.delete(a_version(), self.command(), started().export)


class TestRoom:
    def test_is_compared_in_words_before_any_work(self):
        needed = exports.needed_memory(LLAMA, "safetensors")
        assert 33 * GIB < needed < 36 * GIB
        room = {"needed_bytes": needed, "needed_disk_bytes": 50 * GIB}
        why = exports.why_no_room(**room, available_bytes=16 * GIB, available_disk_bytes=100 * GIB)
        assert f"needs {needed / GIB:.1f} GiB" in why
        assert "machine has 16.0 GiB" in why
        why = exports.why_no_room(**room, available_bytes=64 * GIB, available_disk_bytes=GIB)
        assert "need 50.0 GiB, the registry's scratch folder has 1.0 GiB" in why
        assert exports.why_no_room(**room, available_bytes=64 * GIB, available_disk_bytes=51 * GIB) == ""

    def test_on_the_disk_is_for_what_is_fetched_and_what_is_written(self):
        files = estimated_bytes(LLAMA.num_parameters, "BF16", None)
        adapter, full = (exports.needed_disk(LLAMA, kind, files) for kind in ("adapter", "full"))
        assert 2 * files < adapter < full

    @pytest.mark.parametrize(("quantization", "gib"), [("f16", 14.9), ("q8_0", 7.9), ("q4_0", 4.2)])
    def test_of_a_file_follows_from_its_type(self, quantization, gib):
        assert estimated_bytes(LLAMA.num_parameters, "BF16", quantization) / GIB == pytest.approx(
            gib, abs=0.1
        )


class TestParity:
    @pytest.mark.parametrize(
        ("changes", "passes"),
        [
            ({}, True),
            ({"mean_kl": 2e-3}, False),
            ({"equal_next_tokens": 0.9}, False),
            ({"is_finite": False}, False),
            ({"mean_kl": float("nan")}, False),
            # As far from the trained model as the base model is: the adapter is not in the files.
            ({"mean_kl": 5e-4, "training_kl": 5e-4}, False),
            # Rounding alone: no file could be nearer.
            ({"mean_kl": 5e-5, "training_kl": 5e-5}, True),
            ({"mean_kl": 5e-4, "training_kl": None}, True),
        ],
    )
    def test_passes_within_the_limits_of_safetensors(self, changes, passes):
        assert exports.judge(distances(**changes), "safetensors", None).passed is passes

    def test_allows_more_for_fewer_bits(self):
        far = distances(mean_kl=0.1, equal_next_tokens=0.7)
        assert [exports.judge(far, "gguf", bits).passed for bits in ("f16", "q8_0", "q4_0")] == [
            False, False, True,
        ]  # fmt: skip

    def test_that_fails_is_kept_with_its_numbers(self):
        parity = exports.judge(distances(mean_kl=0.5), "gguf", "q8_0")
        fact = exports.failed(
            a_version(), started().export, code="parity", message=exports.why_not_near(parity), parity=parity
        ).event
        assert isinstance(fact, ModelExportFailed)
        assert fact.parity == parity
        assert "mean divergence 0.5 nats of at most 0.01" in fact.message


def test_progress_estimates_what_is_left_by_the_pace_so_far():
    fact = exports.progressed(a_version(), started().export, "writing", 25, 100, 10.0)
    assert fact.seconds_left == 30.0
    assert exports.progressed(a_version(), started().export, "fetching", 0, 0, 10.0).seconds_left is None


def test_an_id_says_what_it_is_about():
    assert export_id("mv-ftjob-1-abcdef01", "safetensors", None) == "export-ftjob-1-abcdef01-safetensors"
