"""Pool, migrations and the kernel's tables."""
