"""Conversations: the shapes in which rows hold them, and their tokens by a model's template."""
