"""A new job on a dataset: its report, and the form's fields that ask for the same rows once more."""

import asyncio

from pydantic import ValidationError

from schemas.report import DatasetReport
from services.gateway import job_readmodels, model, readmodels
from services.gateway.deps import Gateway
from services.gateway.page import drafts
from services.gateway.routes import datasets
from shared.errors import CorruptObject, StorageUnavailable


async def find_report(context: Gateway, row: model.Dataset) -> tuple[DatasetReport | None, str]:
    """The report that ingest wrote, else why there is none to show."""
    if row.state in ("validating", "deleted"):
        return None, ""
    try:
        data = await datasets.find_report(context, row)
    except StorageUnavailable:
        return None, "The report is not here now: the object store does not answer. Load the page again."
    except (KeyError, CorruptObject):
        return None, "The report is not there, or is too large to be shown."
    if data is None:
        return None, "There is no report: the rows were not looked at."
    try:
        return await asyncio.to_thread(DatasetReport.model_validate_json, data), ""
    except ValidationError:
        return None, "The report is of another release and cannot be shown here; it can be downloaded."


async def find_values(
    context: Gateway, row: model.Dataset, report: DatasetReport | None
) -> tuple[drafts.Values, str]:
    """Return the fields by which a job trains on the dataset, else why none can."""
    database, detail = context.service.database, row.detail
    if row.state != "ready" or detail.base_sha is None:
        return {}, f"it is {row.state}"
    named = report_files(report) | (detail.files.model_dump(exclude_none=True) if detail.files else {})
    files = await job_readmodels.find_files(database, row.tenant, [*named.values()])
    missing = [role.replace("_", " ") for role, digest in named.items() if digest not in files]
    if missing or "training" not in named:
        return {}, f"its {missing[0] if missing else 'training'} file is deleted: upload it again"
    base = await readmodels.find_base_of_files(database, detail.base_sha)
    if base is None:
        return {}, "its base model has other files now: validate its rows for these"
    policy = await readmodels.find_policy_of_dataset(database, row.dataset_id, row.tenant)
    ids = {role: files[digest].file_id for role, digest in named.items()}
    return drafts.values_of(drafts.on_dataset(base.name, ids, policy, report)), ""


def report_files(report: DatasetReport | None) -> dict[str, str]:
    """sha256 of each file by its role."""
    return {file.role: file.sha256 for file in report.files} if report else {}
