"""``ptxas``, the compiler of PTX: what it refuses, and the registers and instructions it makes."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
import shutil
import subprocess
import tempfile


def ptxas() -> str | None:
    """The path of the compiler of PTX."""
    found = importlib.util.find_spec("nvidia")
    folders = [pathlib.Path(p) for p in (found.submodule_search_locations if found else [])]
    paths = [str(path) for folder in folders for path in folder.glob("*/bin/ptxas")]
    return shutil.which("ptxas") or next(iter(paths), None)


def refused_by_ptxas(target: str, ptx: str) -> list[str]:
    """XLA does not look at PTX that it is given; nor may a register be spilled."""
    with tempfile.TemporaryDirectory(prefix="gpu_offline_") as folder:
        source = pathlib.Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [ptxas(), "-v", "-arch", target, str(source), "-o", f"{source}.cubin"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", result.stderr)]
    return [] if result.returncode == 0 and spills == [0, 0] else [f"ptxas: {result.stderr}"]


@functools.cache
def resources(ptx: str, target: str) -> dict[str, dict[str, int]]:
    """By kernel: registers of a thread, bytes of stores to spill, machine instructions."""
    (arch,) = set(re.findall(r"^\.target (\w+)", ptx, re.M))
    arch = arch if arch.startswith(target) else target  # sm_90a; or PTX of our own for any GPU
    with tempfile.TemporaryDirectory(prefix="gpu_cost_") as folder:
        source = pathlib.Path(folder, "kernel.ptx")
        source.write_text(ptx)
        cubin = f"{source}.cubin"
        command = [ptxas(), "-v", "-arch", arch, str(source), "-o", cubin]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        code = ""
        if shutil.which("nvdisasm"):
            command = ["nvdisasm", "-c", cubin]
            code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    pattern = r"Compiling entry function '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers"
    for name, spilled, registers in re.findall(pattern, said, re.S):
        found[name] = {"registers": int(registers), "spilled": int(spilled)}
        body = re.search(rf"^\.text\.{re.escape(name)}:\n(.*?)(?=^\.text\.|\Z)", code, re.M | re.S)
        if body:
            found[name] |= _instructions(body[1])
    return found


def _instructions(sass: str) -> dict[str, int]:
    """All, and those of the longest of the loops without another one."""
    lines, labels, loops = [], {}, []
    for line in sass.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(lines)
        elif found := re.search(r"/\*[\da-f]{4,}\*/\s+(.*?);", line):
            lines.append(found[1])
            target = re.search(r"\bBRA.*`\((\.L_x_\d+)\)", found[1])
            if target and target[1] in labels:
                loops.append((labels[target[1]], len(lines)))
    while lines and re.match(r"(NOP|BRA)\b", lines[-1]):  # what fills it up
        lines.pop()
    loops = [x for x in loops if x[1] <= len(lines)]
    innermost = [
        (a, b)
        for a, b in loops
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)
    ]
    found = {"instructions": len(lines)}
    if innermost:
        first, last = max(innermost, key=lambda x: x[1] - x[0])
        loop = lines[first:last]
        found["loop"] = len(loop)
        found["loop, FFMA"] = sum("FFMA" in x for x in loop)
        found["loop, LDS"] = sum("LDS" in x for x in loop)
    return found
