"""Tools that show whether bits agree, and what a program is made of."""

from repjax.verify.audit import audit
from repjax.verify.digest import digest, hex_bits

__all__ = ["audit", "digest", "hex_bits"]
