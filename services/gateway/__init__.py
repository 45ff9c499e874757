"""The door for people: OpenAI-compatible HTTP in, commands out; read models fed from events alone."""
