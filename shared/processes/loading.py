"""How a process that computes with torch and transformers imports them in two thirds of the time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNUSED_BY_TEXT_MODELS = ("sklearn", "scipy")
"""transformers imports them wherever they are installed, for assisted decoding and object detection."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Within it no garbage is collected and the unused packages count as not installed."""
    absent = [package for package in UNUSED_BY_TEXT_MODELS if package not in sys.modules]
    collected = gc.isenabled()
    gc.disable()
    # None makes an import fail, and `importlib.util.find_spec` find nothing.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for package in absent:
            del sys.modules[package]
        if collected:
            gc.enable()
