"""Where the processor time of `bench.training.speed` goes on both sides, by kind of operation.

`python -m bench.training.operations "METHOD SHAPE PRECISION" "VARIANT"` runs each side once under PyTorch's profiler,
TRL by the variant that was its fastest there. The profiler takes time of its own: shares count, not their sum.
"""

import sys
import tempfile
from pathlib import Path

from bench import report
from bench.training.speed import CASES, SEED, run
from bench.training.speed_inputs import SHAPES, make


def main() -> None:
    name, variant = sys.argv[1:]
    [case] = [each for each in CASES if str(each) == name]
    with tempfile.TemporaryDirectory() as scratch:
        inputs = make(Path(scratch) / case.shape, SHAPES[case.shape], seed=SEED)
        results = {
            side: run(side, case, inputs, operations=True, **flags)
            for side, flags in (("ours", {}), ("trl", case.variants[variant]))
        }
    packages = ("torch", "transformers", "peft", "trl", "bitsandbytes")
    file = f"training-operations-{case.method}-{case.shape}-{case.precision}"
    report.write(file, results, packages=packages, settings={"peer": variant})


if __name__ == "__main__":
    main()
