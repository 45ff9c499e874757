"""The contract: messages, topics, specifications and artefact formats. Imports pydantic only."""
