"""Users of Kafka that are made while the platform runs: tenants' programs and internal teams."""
