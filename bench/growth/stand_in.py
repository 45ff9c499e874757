"""The serving controller with a replica that needs no model, and has what `loaded` beside its base model names.

python -m bench.growth.stand_in controller
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integration import engines, stand_in_engine


def loaded_names(model_dir: Path) -> Path:
    """One name a line."""
    return model_dir.with_name("loaded")


class Loaded(engines.Engine):  # type: ignore[misc]
    """What the file names is loaded as soon as it is written: the bench fills tables under a replica that runs."""

    @property
    def adapters(self) -> dict[str, float]:
        names = loaded_names(self.spec.model_dir)
        return dict.fromkeys(names.read_text().split(), 1.0) if names.exists() else {}

    @adapters.setter
    def adapters(self, _: dict[str, float]) -> None:
        """The base class sets its own."""


def serve() -> None:
    engines.Engine = Loaded
    stand_in_engine.serve(dict(option.partition("=")[::2] for option in sys.argv[1:]))


if __name__ == "__main__":
    if sys.argv[1:] == ["controller"]:
        stand_in_engine.__file__ = __file__
        stand_in_engine.control()
    else:
        serve()
