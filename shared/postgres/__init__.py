"""The Postgres pool, the migrations and the kernel's tables."""
