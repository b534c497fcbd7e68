"""What runs here, and the digest of a file: ``repjax info`` and ``repjax digest``."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import zipfile

import numpy as np

from repjax import checkpoint
from repjax.digests import Leaf, digest_alone, digest_of_leaves, leaves, show
from repjax.information import info

#: The first bytes of an archive, and of an array of NumPy's.
_ZIP, _NPY = b"PK\x03\x04", b"\x93NUMPY"


class FileError(ValueError):
    """A file that holds no arrays."""


def leaves_of(path: str | pathlib.Path) -> list[Leaf]:
    """The leaves of the tree in a file, in the order of their digest.

    Args:
      path: a checkpoint of :mod:`repjax.checkpoint`; another ``.npz``, which is a dict of its
        arrays by their names; or a ``.npy``, which is an array.

    Raises:
      FileError: a file of another kind, or with objects of Python in it.
      CheckpointError: a checkpoint that was cut short or changed.
      OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        start = file.read(len(_NPY))
    if not start.startswith((_ZIP, _NPY)):
        raise FileError(
            f"{path}: expected a checkpoint, an .npz or an .npy, received a file that starts with "
            f"{start!r}; save the tree with repjax.checkpoint.save"
        )
    try:
        if start.startswith(_ZIP) and checkpoint.is_one(path):
            return checkpoint.stored_leaves(path)
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            return leaves({**found} if start.startswith(_ZIP) else found)
    except checkpoint.CheckpointError:
        raise
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FileError(
            f"{path}: expected arrays of numbers, received {type(error).__name__}: {error}; "
            "restore the file from another copy, or save the tree with repjax.checkpoint.save"
        ) from None


# --- the commands -----------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "info",
        help="what runs here: versions, processor, kernels, options",
        description="What runs here, for reports: versions, processor and devices, which kernels "
        "are in use and why not, options and flags.  Only the version of the contract and the "
        "options change bits.  Exit status: 0, or 2 if REPJAX_NATIVE is wrong.",
        epilog="example: repjax info --json",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_info)
    parser = commands.add_parser(
        "digest",
        help="the digest of the arrays in a file",
        description="The digest of the tree of arrays in each file, as repjax.digest gives it: of "
        "a checkpoint (repjax.checkpoint), of an .npz as a dict of arrays by name, of an .npy. "
        "Exit status: 0, or 2 if a file cannot be read.",
        epilog="example: repjax digest --leaves params.npz",
    )
    parser.add_argument("files", metavar="FILE", nargs="+")
    parser.add_argument("--leaves", action="store_true", help="of each array in it, too")
    parser.set_defaults(run=_digest)


def _info(arguments: argparse.Namespace) -> int:
    try:
        found = info()
    except (RuntimeError, ValueError) as error:
        print(f"repjax info: {str(error).strip()}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        width = max(map(len, found))
        print("\n".join(f"{name:{width}}  {value}" for name, value in found.items()))
    return 0


def _digest(arguments: argparse.Namespace) -> int:
    status = 0
    for file in arguments.files:
        try:
            found = leaves_of(file)
        except (OSError, ValueError) as error:
            print(f"repjax digest: {error}", file=sys.stderr)
            status = 2
            continue
        for leaf in found if arguments.leaves else ():
            shape = "" if leaf.array is None else f"[{','.join(map(str, leaf.array.shape))}]"
            print(f"{digest_alone(leaf.array)}  {show(leaf.path)} {leaf.dtype}{shape}")
        print(f"{digest_of_leaves(found)}  {file}")
    return status
