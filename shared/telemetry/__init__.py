"""Metric names and tracing."""
