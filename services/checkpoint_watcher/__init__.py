"""Verifies what training wrote, keeps the newest good checkpoints, says when one is overdue."""
