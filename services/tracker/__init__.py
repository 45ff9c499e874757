"""Metrics of every step and the cost of every job."""
