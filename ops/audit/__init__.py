"""Checking the topics against what the auditor has signed."""
