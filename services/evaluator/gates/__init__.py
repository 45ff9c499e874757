"""The gate's arithmetic: per-item scores in, one CheckResult per check and one verdict out. Pure."""
