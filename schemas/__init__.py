"""The contract: messages, topics, specifications and artifact formats. Imports pydantic only."""
