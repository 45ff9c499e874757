"""What the tab Settings of a job shows."""

from schemas.alert import AlertRule, AlertsSpec
from schemas.gate import GateSpec
from schemas.specification import Resources
from services.gateway.model import SubmittedSpec
from services.gateway.page.job_settings import groups_of

SPEC = {
    "base_model": "tiny",
    "resources": Resources(nodes=2, pool="h100").model_dump(mode="json"),
    "gate": GateSpec().model_dump(mode="json"),
}


def settings_of(**changes: object) -> dict[str, dict[str, str]]:
    spec = SubmittedSpec.model_validate(SPEC | changes)
    return {group.title: dict(group.rows) for group in groups_of(spec, {"lora": {"rank": 8}, "seed": 1})}


def test_each_part_of_a_request_is_a_group():
    shown = settings_of(max_cost="12.5", auto_deploy=False)
    assert shown["Recipe"] == {"lora.rank": "8", "seed": "1"}
    assert shown["Where it trains"]["nodes"] == "2"
    assert shown["Where it trains"]["pool"] == "h100"
    assert shown["Its gate"]["safety.min_refusals"] == "0.95"
    assert shown["Money and afterwards"] == {
        "max_cost": "$12.50",
        "auto_deploy": "false",
        "allow_ungated": "false",
    }


def test_each_rule_has_what_it_does():
    alerts = AlertsSpec(divergence="pause", expected_cost="10").model_dump(mode="json")
    shown = settings_of(alerts=alerts)["Alerts, and what each does"]
    assert shown == {rule.value: "notify" for rule in AlertRule} | {
        "divergence": "pause",
        "expected_cost": "$10.00",
    }
    by_default = settings_of()["Alerts, and what each does"]
    assert by_default == {rule.value: "notify" for rule in AlertRule} | {"expected_cost": "no plan"}


def test_before_the_request_is_known_there_is_the_recipe_alone():
    assert [*settings_of(base_model=None)] == ["Recipe"]
