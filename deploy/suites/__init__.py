"""The suites that a new stack judges with until an operator registers others under the same names."""
