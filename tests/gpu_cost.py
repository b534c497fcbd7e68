"""What programs cost a GPU that need not be there: launches, bytes, registers, instructions.

    python tests/gpu_cost.py [--target sm_90] [--only PREFIX ...] [--kernels]

One JSON object for each program of :func:`ptx.cost.programs`: of what a call launches, how often,
and how many bytes its operands and results have; with ``--kernels`` one more for each launch, with
what ``ptxas`` says of registers and spills, and, where ``nvdisasm`` is on the path, the number of
the kernel's machine instructions, all of them and those of its innermost loop.

No time is measured: that takes a device (``benchmarks/gpu.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import jax

from ptx.cost import costs, programs
from ptx.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", choices=TARGETS, default="sm_90")
    parser.add_argument("--only", nargs="+", default=[""], help="programs whose names start so")
    parser.add_argument("--kernels", action="store_true", help="each launch, too")
    options = parser.parse_args()
    # Deviceless, as in gpu_offline.py.
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    jax.config.update("jax_platforms", "cpu")
    for name in programs():
        if name.startswith(tuple(options.only)):
            total, *rows = costs(options.target, name)
            for row in [total, *(rows if options.kernels else [])]:
                print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
