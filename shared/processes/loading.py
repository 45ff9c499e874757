"""How a process that computes with torch and transformers imports them in two thirds of the time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

UNUSED_BY_TEXT_MODELS = ("sklearn", "scipy", "bitsandbytes")
"""transformers and PEFT import them wherever they are installed, for assisted decoding, object detection and 4 bits;
what needs bitsandbytes imports it afterwards."""


@contextmanager
def without_bitsandbytes(peft_layers: ModuleType) -> Iterator[None]:
    """Let PEFT put adapters on layers without looking whether these have 4 bits.

    It would import bitsandbytes for that: more than a second. `peft_layers` is `peft.tuners.lora.model`.
    """
    names = ("is_bnb_available", "is_bnb_4bit_available")
    functions = {name: getattr(peft_layers, name) for name in names}
    for name in names:
        setattr(peft_layers, name, lambda: False)
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(peft_layers, name, function)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect no garbage and count the unused packages as not installed, for as long as the block runs."""
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
