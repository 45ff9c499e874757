"""How well the tracker's alerts find planted faults, and how rarely they are raised without one."""
