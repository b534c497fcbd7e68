"""Tools that show whether bits agree, and what a program is made of."""

from repjax.digests import digest, hex_bits
from repjax.verify.audit import audit
from repjax.verify.bisection import bisect
from repjax.verify.comparison import compare
from repjax.verify.entropy import EntropyError
from repjax.verify.recordings import RecordingError, record, replay
from repjax.verify.runs import Run, RunError
from repjax.verify.runs import read as read_run
from repjax.verify.traces import read as read_trace
from repjax.verify.traces import trace
from repjax.verify.training import Training

__all__ = [
    "EntropyError",
    "RecordingError",
    "Run",
    "RunError",
    "Training",
    "audit",
    "bisect",
    "compare",
    "digest",
    "hex_bits",
    "read_run",
    "read_trace",
    "record",
    "replay",
    "trace",
]
