"""Webhooks: what tenants' endpoints are sent, signed as Standard Webhooks describes it."""
