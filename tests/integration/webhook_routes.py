"""Routes of webhook endpoints, for the tests that keep tenants apart."""

from tests.integration.gateway_world import World, mark

ENDPOINT = "/webhook_endpoints/{webhook_endpoint}"
OF_WEBHOOKS = [
    ("GET", ENDPOINT),
    ("POST", ENDPOINT),
    ("POST", f"{ENDPOINT}/rotate_secret"),
    ("POST", f"{ENDPOINT}/test"),
    ("GET", f"{ENDPOINT}/deliveries"),
    ("POST", f"{ENDPOINT}/deliveries/{{webhook_delivery}}/replay"),
    ("DELETE", ENDPOINT),
]
LISTS_OF_WEBHOOKS = ["/webhook_endpoints", "/webhook_endpoints?after={webhook_endpoint}"]


async def a_webhook(world: World) -> dict[str, str]:
    """An endpoint that is sent nothing, and a name as a delivery would have it."""
    body = {"name": "x", "url": "https://example.com/x", "event_types": ["retune.deployment.failed"]}
    endpoint = (await world.ask("POST", "/webhook_endpoints", json=body)).json()
    return {"webhook_endpoint": endpoint["id"], "webhook_delivery": f"whd_{mark()}"}
