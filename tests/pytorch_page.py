"""PyTorch's block of docs/pytorch.md prints the loss that the page says, as JAX's does.

    python tests/pytorch_page.py --python PYTHON

runs the page's first block, which writes the data and the first weights, here, and PyTorch's with a
Python that has PyTorch and NumPy, which need not be this one.  Exit status: 0 the loss is the
page's, 1 it is not.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "pytorch.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    python = parser.parse_args().python
    expected = blocks("text")[0].splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        printed = ""
        for program, text in ((sys.executable, blocks("python")[0]), (python, blocks("py")[0])):
            printed = subprocess.run(
                [program, "-"],
                input=text,
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout.strip()
    print(f"PyTorch: {printed}; the page: {expected}")
    return 0 if printed == expected else 1


if __name__ == "__main__":
    sys.exit(main())
