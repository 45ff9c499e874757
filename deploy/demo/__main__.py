"""`python -m deploy.demo`: the main job, from the standard library's sources to a gated, served adapter."""

import asyncio
import sys

from deploy.demo.story import DemoFailed, run

if __name__ == "__main__":
    try:
        asyncio.run(run())
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        sys.exit(1)
