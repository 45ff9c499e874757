"""The operator's form of quotas: what each field means, and what is decided."""

import pytest
from pydantic import ValidationError

from services.gateway.page import admin, login
from services.gateway.quotas import Quotas


def test_a_field_is_empty_for_the_default_and_none_for_no_limit():
    decided = {"open_jobs": 5, "streams": None}
    views = {
        each.name: each
        for each in admin.quota_views(Quotas().changed_by(decided), decided, {"open_jobs": 2}, Quotas())
    }
    assert views.keys() == Quotas.model_fields.keys()
    assert (views["open_jobs"].typed, views["open_jobs"].limit, views["open_jobs"].default) == ("5", 5, 1_000)
    assert (views["open_jobs"].used, views["streams"].used) == (2, None)
    assert (views["streams"].typed, views["transfers"].typed) == ("none", "")
    assert (
        admin.quotas_of({name: view.typed for name, view in views.items()}).model_dump(exclude_unset=True)
        == decided
    )


def test_a_number_may_have_commas():
    assert admin.quotas_of({"open_jobs": " 1,000 ", "streams": ""}).model_dump(exclude_unset=True) == {
        "open_jobs": 1000
    }


@pytest.mark.parametrize(
    ("typed", "num_bytes", "written"),
    [
        ("20 GiB", 20 * 1024**3, "20 GiB"),
        ("1.5GiB", 3 * 512 * 1024**2, "1,536 MiB"),
        ("1,000", 1000, "1,000 B"),
        ("2 TiB", 2 * 1024**4, "2 TiB"),
        ("0", 0, "0 B"),
    ],
)
def test_bytes_are_typed_and_written_with_their_unit(typed, num_bytes, written):
    assert admin.quotas_of({"stored_bytes": typed}).stored_bytes == num_bytes
    assert admin.typed_of("stored_bytes", num_bytes) == written
    assert admin.quotas_of({"stored_bytes": written}).stored_bytes == num_bytes


def test_a_size_in_no_known_unit_is_refused_by_name():
    with pytest.raises(ValidationError) as caught:
        admin.quotas_of({"stored_bytes": "20 GB"})
    assert caught.value.errors()[0]["loc"][0] == "stored_bytes"


@pytest.mark.parametrize("typed", ["x", "-1", "1.5"])
def test_what_is_no_number_is_refused_by_name(typed):
    with pytest.raises(ValidationError) as caught:
        admin.quotas_of({"open_jobs": typed})
    assert caught.value.errors()[0]["loc"][0] == "open_jobs"


@pytest.mark.parametrize(
    ("path", "is_operators"),
    [("/admin", True), ("/admin?after=a", True), ("/admin/audit", True), ("/administrator", False), ("/", False), ("/jobs", False)],
)  # fmt: skip
def test_the_operators_pages_begin_with_admin(path, is_operators):
    assert login.is_operators(path) is is_operators
