"""The form of what refusals say."""

from __future__ import annotations

import re

_SUBJECT = r"(\S[^;]* )?"


FORM = re.compile(
    _SUBJECT + r"(has no reproducible form|expected [^;]*, received [^;]*"
    r"|inside an explicit repjax function would lose its derivative); (?!.*; ?;)\S.*[^;:,. ]"
)
