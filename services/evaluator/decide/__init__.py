"""What the evaluator decides; pure."""
