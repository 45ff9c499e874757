"""The gate's arithmetic: per-item scores in, one StageResult per stage and one verdict out. Pure."""
