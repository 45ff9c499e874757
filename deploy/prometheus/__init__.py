"""A Prometheus of this machine, which watches the local stack or a test's."""
