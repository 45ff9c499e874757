"""What transformers makes of a base model's files, asked in a process of its own: the registry imports no torch."""
