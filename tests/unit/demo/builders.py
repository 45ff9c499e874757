"""Small sources and docstrings to test the demo's data with."""

from deploy.demo.library import Docstring, Source, Split


def a_docstring(text: str, *, module: str = "json", name: str = "dump") -> Docstring:
    return Docstring(module, name, text, first_line=2, last_line=2)


def docstrings_in(split: Split, count: int, *, module: str = "json") -> list[Docstring]:
    """Docstrings that fall into one split."""
    docstrings: list[Docstring] = []
    number = 0
    while len(docstrings) < count:
        number += 1
        doc = a_docstring(
            f"Return number {number} of the many things that are kept in store.",
            module=module,
            name=f"get_{number}",
        )
        if doc.split is split:
            docstrings.append(doc)
    return docstrings


def held_out_path() -> str:
    return next(path for path in _paths() if Source(path, "").is_held_out)


def seen_path() -> str:
    return next(path for path in _paths() if not Source(path, "").is_held_out)


def _paths() -> list[str]:
    return [f"package/file_{number}.py" for number in range(200)]


def code(num_lines: int, *, seed: str = "") -> str:
    """Lines that differ, each with more than four words."""
    return "\n".join(
        f"value_{seed}{number} = make_{number}(first, second, third={number})" for number in range(num_lines)
    )
