"""Write the dashboards, or with --check say which are out of date: `python -m deploy.monitoring`."""

import json
import sys
from pathlib import Path

from deploy.monitoring.dashboards import dashboards

FOLDER = Path(__file__).with_name("dashboards")


def main(arguments: list[str]) -> int:
    is_check = "--check" in arguments
    texts = {
        FOLDER / f"{each.name}.json": json.dumps(each.document, indent=1) + "\n" for each in dashboards()
    }
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{'out of date' if is_check else 'written'}: deploy/monitoring/dashboards/{path.name}")
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(texts[path])
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
