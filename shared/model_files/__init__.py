"""The files of base models, full models and adapters: one rule set, applied before any loader opens them."""
