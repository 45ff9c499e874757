"""Engines that run nodes, one file per engine behind one Protocol."""
