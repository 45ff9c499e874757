"""Write docs/reference, or with --check say which pages are out of date."""

import sys

from deploy.reference.pages import ROOT, pages

FOLDER = ROOT / "docs/reference"


def main(arguments: list[str]) -> int:
    is_check = "--check" in arguments
    texts = {FOLDER / f"{name}.md": text for name, text in pages().items()}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{'out of date' if is_check else 'written'}: {path.relative_to(ROOT)}")
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path])
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
