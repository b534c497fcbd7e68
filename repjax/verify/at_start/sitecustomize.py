"""Runs first in a Python process that `repjax record` or `repjax replay` starts.

Its folder is at the front of ``PYTHONPATH`` then.  It takes the folder out of ``sys.path``, begins
to record or replay, and imports the ``sitecustomize`` that there would be without it.
"""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def start():
    """The package is not imported, which takes long: only the file of ``repjax.verify.entropy``."""
    name = "repjax.verify.entropy"
    path = os.path.join(os.path.dirname(HERE), "entropy.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if folder := os.environ.get(module.FOLDER):
        module.install(folder)


sys.path[:] = [x for x in sys.path if os.path.abspath(x) != HERE]
try:
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may be started with its folder
        raise RuntimeError(f"expected Python 3.11 or newer, received {sys.executable}")
    start()
except BaseException as error:
    # Python would go on without, and unrecorded.
    print(f"repjax: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(2)

ours = sys.modules.pop(__name__)
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    sys.modules[__name__] = ours
    if error.name != __name__:
        raise
