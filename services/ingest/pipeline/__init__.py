"""The child process that turns uploaded rows into packed arrays: no broker, database, store or network."""
