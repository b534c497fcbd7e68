"""An option of XLA for programs with short loops, which its CPU compiler is to make functions of.

Before jax 0.12, XLA makes one function of a loop if an iteration reads and writes less than 1024
bytes, as it counts them, and else calls one for every few operations, which takes a short loop
several times as long.  The limit is an option that ``jax.jit`` cannot pass, for it is an entry of a
table.  So it is added to the options as XLA reads them, a message of protocol buffers: a field that
stands in a message once more is merged with what is there.
"""

from __future__ import annotations

import jax
from jaxlib.mlir import ir

#: Whether the limit is that low.
IS_NEEDED = jax.__version_info__ < (0, 12)
_MARK = "repjax.has_short_loops"
_OPTION, _BYTES = b"xla_cpu_small_while_loop_byte_threshold", b"16384"
#: Fields of XLA's CompileOptionsProto, ExecutableBuildOptionsProto and DebugOptions:
#: executable_build_options, debug_options, xla_backend_extra_options.
_FIELDS = (3, 3, 500)


def mark(ctx) -> None:
    """Note in the module that is lowered that it has a short loop."""
    if not IS_NEEDED:
        return
    attributes = ctx.module_context.module.operation.attributes
    attributes[_MARK] = ir.UnitAttr.get(ctx.module_context.context)


def with_options(module, options):
    """The options to compile a module with, which is not marked any more."""
    attributes = module.operation.attributes
    if _MARK not in attributes:
        return options
    del attributes[_MARK]
    options.executable_build_options.debug_options  # noqa: B018  (those of XLA_FLAGS, if none yet)
    message = options.SerializeAsString()
    if _OPTION in message:  # the user has chosen it
        return options
    added = _field(1, _OPTION) + _field(2, _BYTES)
    for number in reversed(_FIELDS):
        added = _field(number, added)
    return type(options).ParseFromString(message + added)


def _field(number: int, content: bytes) -> bytes:
    """A field of a message, whose content is text or a message itself."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(n: int) -> bytes:
    """An integer by its 7 bits, from the lowest, each but the last with a sign that more follow."""
    return bytes([n & 127 | 128]) + _varint(n >> 7) if n > 127 else bytes([n])
