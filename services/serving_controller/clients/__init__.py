"""What the serving controller does outside its database: processes, files, and vLLM's own API."""
