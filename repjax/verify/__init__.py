"""Tools that show whether bits agree."""

from repjax.verify.digest import digest, hex_bits

__all__ = ["digest", "hex_bits"]
