"""Requests, verdicts, deletions: who is answered what."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.artifacts import DatasetCounts, DatasetFiles, files_of
from schemas.base import FileRef
from schemas.dataset import (
    DatasetAccepted,
    DatasetReady,
    DatasetRejected,
    DeleteDataset,
    RowProblem,
    SubmitDataset,
)
from schemas.specification import DatasetPolicy, DatasetSpec, Method, SafetyMix, canonical_sha256
from schemas.topics import DATASET_EVENTS
from services.ingest.decide import (
    IDS_OF_A_FACT,
    PACKING,
    answer_of,
    deletions,
    on_delete,
    on_submit,
    on_validated,
    version_id,
)
from services.ingest.model import (
    BaseModel,
    Ready,
    Rejection,
    Request,
    Source,
    Version,
    VersionState,
)
from shared.errors import Refused
from shared.messaging.unit import require_size
from tests.builders import TENANT, a_file_ref, a_sha
from tests.moves import moves_of

BASE = BaseModel(
    base_sha=a_sha("tiny"),
    manifest_sha256=a_sha("tiny manifest"),
    template_sha256=a_sha("template"),
    context_tokens=512,
)
READY = Ready(
    manifest_sha256=a_sha("manifest"),
    template_sha256=a_sha("template"),
    counts=DatasetCounts(rows=9, windows=1, tokens=99, loss_tokens=50),
)
REJECTION = Rejection(code="empty", message="the training file has no rows")


def a_source(name: str = "stdlib", digest: str = "benchmark", kind: Any = "benchmark") -> Source:
    return Source(kind=kind, name=name, digest=a_sha(digest), file=a_file_ref(name))


SOURCES = (a_source(), a_source("refusals", "suite", "suite"))


def a_spec(**changes: Any) -> DatasetSpec:
    fields = {"base_model": "tiny", "base_sha": BASE.base_sha, "training_file": a_file_ref()}
    return DatasetSpec(**fields | changes)


def a_command(
    dataset_id: str = "ds-1", *, spec: DatasetSpec | None = None, tenant: str = TENANT
) -> SubmitDataset:
    return SubmitDataset(dataset_id=dataset_id, tenant=tenant, spec=spec or a_spec())


def submitted(command: SubmitDataset, known: Version | None = None, asked: Request | None = None) -> Any:
    return on_submit(command, BASE, SOURCES, known=known, asked=asked)


def a_version(state: VersionState = VersionState.READY) -> Version:
    version = submitted(a_command()).version
    ready = READY if state in {VersionState.READY, VersionState.DELETING} else None
    rejection = REJECTION if state in {VersionState.REJECTED, VersionState.FAILED} else None
    return replace(version, state=state, ready=ready, rejection=rejection)


class TestFiles:
    """DatasetReady names what the version was made of, so that no job may claim another file."""

    SPEC = a_spec(holdout=a_file_ref("holdout"), safety_mix=SafetyMix(file=a_file_ref("mix")))
    EXPECTED = DatasetFiles(
        training=a_file_ref().sha256, holdout=a_sha("holdout"), safety_mix=a_sha("mix"), validation=None
    )

    def test_get_the_facts_of_a_version_that_is_ready_now(self):
        submission = submitted(a_command(spec=self.SPEC))
        ready = READY.model_copy(update={"files": files_of(self.SPEC)})
        (fact,) = on_validated(submission.version, ready, [submission.request]).events
        assert fact.files == self.EXPECTED

    def test_get_the_facts_of_a_version_that_was_made_before_they_were_kept(self):
        version = submitted(a_command(spec=self.SPEC)).version
        known = version.to(VersionState.READY, ready=READY)
        _, fact = submitted(a_command("ds-2", spec=self.SPEC), known=known).events
        assert fact.files == self.EXPECTED


def id_of(
    spec: DatasetSpec, *, tenant: str = TENANT, template: str = "t", sources: Any = SOURCES, rules: int = 1
) -> str:
    return version_id(tenant, spec, a_sha(template), sources, rules=rules)


def test_the_gates_answer_budget_is_part_of_a_version_with_a_holdout_alone():
    template = a_sha("t")
    with_holdout, without = a_spec(holdout=a_file_ref("h")), a_spec()
    budgets = (None, 128, 256)
    assert len({version_id(TENANT, with_holdout, template, (), answer_tokens=each) for each in budgets}) == 3
    assert len({version_id(TENANT, without, template, (), answer_tokens=each) for each in budgets}) == 1


OTHER = FileRef(file_id="file-other", sha256=a_sha("other"), size_bytes=5)
FULL = a_spec(
    validation_file=a_file_ref("v"), holdout=a_file_ref("h"), safety_mix=SafetyMix(file=a_file_ref("m"))
)


class TestVersionId:
    @pytest.mark.parametrize(
        "changed",
        [
            {"tenant": "other"},
            {"template": "other"},
            {"rules": 2},
            {"sources": ()},
            {"sources": (*SOURCES, a_source("more"))},
            {"sources": (a_source(digest="newer"), SOURCES[1])},
            {"sources": (a_source(), a_source("refusals", "newer", "suite"))},
        ],
    )
    def test_changes_with_each_ingredient(self, changed: dict[str, Any]) -> None:
        assert id_of(FULL, **changed) != id_of(FULL)

    @pytest.mark.parametrize(
        "changed",
        [
            {"training_file": OTHER},
            {"validation_file": OTHER},
            {"validation_file": None},
            {"holdout": OTHER},
            {"holdout": None},
            {"safety_mix": SafetyMix(file=OTHER)},
            {"safety_mix": SafetyMix(file=a_file_ref("m"), share=0.2)},
            {"safety_mix": None},
            {"base_sha": a_sha("other base")},
            {"method": Method.SFT},
            {"policy": DatasetPolicy(max_seq_length=256)},
            {"policy": DatasetPolicy(truncation=True)},
            {"policy": DatasetPolicy(near_duplicate_similarity=0.8)},
        ],
    )
    def test_changes_with_each_part_of_its_specification(self, changed: dict[str, Any]) -> None:
        assert id_of(FULL.model_copy(update=changed)) != id_of(FULL)

    def test_is_that_of_the_versions_that_are_kept(self) -> None:
        """Under another name of a field every dataset would be validated again."""
        mix = FULL.safety_mix
        assert mix is not None
        assert version_id(TENANT, FULL, a_sha("t"), SOURCES, answer_tokens=128, rules=1) == canonical_sha256(
            {
                "tenant": TENANT,
                "training": FULL.training_file.sha256,
                "validation": a_file_ref("v").sha256,
                "holdout": a_file_ref("h").sha256,
                "safety_mix": {"file": a_file_ref("m").sha256, "share": mix.share},
                "base_sha": FULL.base_sha,
                "template_sha256": a_sha("t"),
                "policy": FULL.policy.model_dump(mode="json"),
                "method": FULL.method,
                "packing": PACKING,
                "rules": 1,
                "sources": sorted((each.kind, each.name, each.digest) for each in SOURCES),
                "answer_tokens": 128,
            }
        )

    def test_is_the_same_for_the_same_bytes_under_other_names(self) -> None:
        renamed = FULL.training_file.model_copy(update={"file_id": "file-2", "filename": "again.jsonl"})
        same = FULL.model_copy(update={"training_file": renamed, "base_model": "alias"})
        assert id_of(same) == id_of(FULL)
        assert id_of(FULL, sources=SOURCES[::-1]) == id_of(FULL)

    def test_swapped_files_are_another_version(self) -> None:
        swapped = FULL.model_copy(update={"validation_file": FULL.holdout, "holdout": FULL.validation_file})
        assert id_of(swapped) != id_of(FULL)


class TestOnSubmit:
    def test_a_new_version_is_accepted_and_validated(self) -> None:
        decision = submitted(a_command())
        assert decision.starts
        assert decision.version.state is VersionState.VALIDATING
        assert decision.version.benchmarks == {"stdlib": a_sha("benchmark")}
        assert decision.version.suites == {"refusals": a_sha("suite")}
        assert decision.events == (DatasetAccepted(dataset_id="ds-1", tenant=TENANT, base_sha=BASE.base_sha),)
        assert not decision.request.is_answered

    def test_a_new_version_has_the_id_of_all_that_decides_its_bytes(self) -> None:
        decision = on_submit(a_command(spec=FULL), BASE, SOURCES, known=None, asked=None, answer_tokens=128)
        assert decision.version.id == version_id(
            TENANT, FULL, BASE.template_sha256, SOURCES, answer_tokens=128
        )

    def test_a_ready_version_answers_at_once_under_the_new_id_without_a_run(self) -> None:
        decision = submitted(a_command("ds-2"), a_version())
        accepted, ready = decision.events
        assert isinstance(accepted, DatasetAccepted)
        assert isinstance(ready, DatasetReady)
        assert (ready.dataset_id, ready.manifest_sha256) == ("ds-2", READY.manifest_sha256)
        assert ready.benchmarks == {"stdlib": a_sha("benchmark")}
        assert decision.request.is_answered
        assert not decision.starts

    def test_a_rejected_version_answers_at_once(self) -> None:
        decision = submitted(a_command("ds-2"), a_version(VersionState.REJECTED))
        assert isinstance(decision.events[1], DatasetRejected)
        assert decision.events[1].code == "empty"
        assert not decision.starts

    def test_a_version_under_validation_is_joined(self) -> None:
        decision = submitted(a_command("ds-2"), a_version(VersionState.VALIDATING))
        assert [event.type for event in decision.events] == ["DatasetAccepted"]
        assert not decision.starts
        assert not decision.request.is_answered

    @pytest.mark.parametrize("state", [VersionState.FAILED, VersionState.DELETED])
    def test_a_version_that_failed_or_is_deleted_is_validated_again(self, state: VersionState) -> None:
        decision = submitted(a_command("ds-2"), replace(a_version(state), ready=READY))
        assert decision.starts
        assert decision.version.state is VersionState.VALIDATING
        assert (decision.version.ready, decision.version.rejection) == (None, None)
        assert [event.type for event in decision.events] == ["DatasetAccepted"]

    def test_a_version_on_its_way_out_is_not_given_away(self) -> None:
        ready = a_version(VersionState.DELETING)
        for version in (ready, replace(ready, ready=None, rejection=REJECTION)):
            assert submitted(a_command("ds-2"), version).events[1].code == "being_deleted"

    def test_the_same_request_twice_is_accepted_once(self) -> None:
        first = submitted(a_command())
        again = submitted(a_command(), first.version, first.request)
        assert again.events == ()
        assert not again.starts

    @pytest.mark.parametrize(
        "command",
        [a_command(spec=a_spec(training_file=OTHER)), a_command(tenant="other")],
        ids=["other file", "other tenant"],
    )
    def test_an_id_stands_for_one_dataset(self, command: SubmitDataset) -> None:
        with pytest.raises(Refused, match="dataset id ds-1 stands for another") as caught:
            submitted(command, None, submitted(a_command()).request)
        assert (caught.value.code, caught.value.param) == ("dataset_id_taken", "dataset_id")

    @pytest.mark.parametrize(
        ("changes", "code", "param"),
        [
            ({"policy": DatasetPolicy(max_seq_length=513)}, "window_too_long", "policy.max_seq_length"),
            ({"policy": DatasetPolicy(max_row_bytes=2**27)}, "row_too_long", "policy.max_row_bytes"),
        ],
    )
    def test_what_cannot_work_is_refused_naming_the_parameter(
        self, changes: dict[str, Any], code: str, param: str
    ) -> None:
        with pytest.raises(Refused) as caught:
            submitted(a_command(spec=a_spec(**changes)))
        assert (caught.value.code, caught.value.param) == (code, param)

    def test_a_window_of_the_whole_context_is_fine(self) -> None:
        assert submitted(a_command(spec=a_spec(policy=DatasetPolicy(max_seq_length=512)))).starts


class TestOnValidated:
    requests = (
        Request("ds-1", TENANT, "v"),
        Request("ds-2", TENANT, "v", is_answered=True),
        Request("ds-3", TENANT, "v"),
    )

    def test_every_waiting_request_gets_its_own_answer(self) -> None:
        decision = on_validated(a_version(VersionState.VALIDATING), READY, self.requests)
        assert decision.version.state is VersionState.READY
        assert [(event.type, event.key) for event in decision.events] == [
            ("DatasetReady", "ds-1"),
            ("DatasetReady", "ds-3"),
        ]

    @pytest.mark.parametrize(
        ("is_final", "state"), [(True, VersionState.REJECTED), (False, VersionState.FAILED)]
    )
    def test_a_rejection_is_for_good_only_if_the_files_are_at_fault(
        self, is_final: bool, state: VersionState
    ) -> None:
        rejection = REJECTION.model_copy(update={"is_final": is_final})
        decision = on_validated(a_version(VersionState.VALIDATING), rejection, self.requests)
        assert decision.version.state is state
        assert [event.type for event in decision.events] == ["DatasetRejected"] * 2

    def test_a_rejection_is_answered_with_its_rows_and_its_report(self) -> None:
        problem = RowProblem(file="training", line=3, rule="r", field="f", found="x", fix="y")
        rejection = REJECTION.model_copy(update={"problems": (problem,), "report_key": "reports/v"})
        (fact,) = on_validated(a_version(VersionState.VALIDATING), rejection, self.requests[:1]).events
        assert fact == DatasetRejected(
            dataset_id="ds-1",
            tenant=TENANT,
            code="empty",
            message="the training file has no rows",
            problems=(problem,),
            report_key="reports/v",
        )


class TestOnDelete:
    command = DeleteDataset(dataset_version=a_version().id, tenant=TENANT)

    @pytest.mark.parametrize("state", [VersionState.READY, VersionState.REJECTED, VersionState.FAILED])
    def test_a_finished_version_is_marked(self, state: VersionState) -> None:
        assert on_delete(self.command, a_version(state)).state is VersionState.DELETING

    def test_a_foreign_version_is_refused_in_the_words_of_an_unknown_one(self) -> None:
        foreign = DeleteDataset(dataset_version=a_version().id, tenant="other")
        with pytest.raises(Refused) as of_foreign:
            on_delete(foreign, a_version())
        with pytest.raises(Refused) as of_unknown:
            on_delete(foreign, None)
        assert of_foreign.value.args == of_unknown.value.args
        assert of_foreign.value.code == of_unknown.value.code == "unknown_dataset"

    @pytest.mark.parametrize(
        ("state", "code"),
        [
            (VersionState.VALIDATING, "validating"),
            (VersionState.DELETING, "already_deleted"),
            (VersionState.DELETED, "already_deleted"),
        ],
    )
    def test_a_version_that_is_not_finished_or_gone_is_refused(self, state: VersionState, code: str) -> None:
        with pytest.raises(Refused) as caught:
            on_delete(self.command, a_version(state))
        assert caught.value.code == code


def test_a_version_moves_so_and_no_other_way() -> None:
    assert moves_of(VersionState, a_version, field="state") == {
        "validating": {"ready", "rejected", "failed"},
        "ready": {"deleting"},
        "rejected": {"deleting"},
        "failed": {"validating", "deleting"},
        "deleting": {"deleted"},
        "deleted": {"validating"},
    }


@pytest.mark.parametrize("state", [VersionState.VALIDATING, VersionState.DELETED])
def test_there_is_no_answer_while_nothing_is_known(state: VersionState) -> None:
    assert answer_of(a_version(state), Request("ds-1", TENANT, "v")) is None


@pytest.mark.parametrize("number", [0, 1, IDS_OF_A_FACT, IDS_OF_A_FACT + 1, 50_000])
def test_a_deletion_names_every_dataset_in_facts_that_can_be_sent(number):
    dataset_ids = [f"ds-{each:037}" for each in range(number)]
    facts = deletions(a_version(), dataset_ids)
    assert [each for fact in facts for each in fact.dataset_ids] == dataset_ids
    for fact in facts:
        require_size(DATASET_EVENTS, fact.type, {}, fact.model_dump_json().encode())
