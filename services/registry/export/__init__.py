"""Files of a model version that run without the platform: written and compared in a process of its own."""
