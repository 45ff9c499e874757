"""Files of environment variables, as a shell reads them."""

import shlex
from pathlib import Path


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of lines `NAME=value`, quoted as for a shell; `export` and comments are allowed.

    Raises: OSError, and ValueError naming the line that is neither.
    """
    variables = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        for word in shlex.split(line, comments=True):
            name, separator, value = word.partition("=")
            if separator:
                variables[name] = value
            elif word != "export":
                raise ValueError(f"{path}, line {number}: found {word!r}, expected NAME=value")
    return variables
