"""Conversations: how rows hold them, and how a model's template makes tokens of them."""
