"""`python -m schemas.generate`: JSON Schema, Avro, AsyncAPI and samples from the message classes.

The class is the pen, the committed file is the contract. A breaking change of a committed file is refused:
it needs a new version of the message, an upcaster, and the old sample stays.
"""
