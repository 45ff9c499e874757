"""The web page of the platform: HTML of what the JSON routes answer, for people who log in with an API key."""

from services.gateway.page import alerts, gates, job, jobs, login, models, now

ROUTERS = (login.router, now.router, jobs.router, job.router, gates.router, models.router, alerts.router)
