"""Backends that run nodes, one file per backend behind one Protocol."""
