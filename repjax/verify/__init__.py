"""Tools that show whether bits agree, and what a program is made of."""

from repjax.verify.audit import audit
from repjax.verify.comparison import compare
from repjax.verify.digest import digest, hex_bits
from repjax.verify.runs import Run, RunError
from repjax.verify.runs import read as read_run

__all__ = ["Run", "RunError", "audit", "compare", "digest", "hex_bits", "read_run"]
