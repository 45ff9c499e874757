"""What `make demo` runs: a base model, data and recipes made from the Python installation itself."""
