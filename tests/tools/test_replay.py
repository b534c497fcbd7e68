"""``repjax record`` and ``repjax replay``: a program draws again what it drew, or is told why not.

Most tests run the functions behind the commands, which start only the recorded program: the
commands import JAX first.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid

import numpy as np
import pytest

from helpers.paths import ROOT
from repjax.verify import EntropyError, RecordingError, entropy, logs, record, recordings, replay
from repjax.verify.entropy import Draw
from repjax.verify.recordings import Recording
from repjax.verify.scripts import ScriptError

HAS_SHIM = recordings.shim()[0] is not None
needs_shim = pytest.mark.skipif(not HAS_SHIM, reason=recordings.shim()[1])

#: Expressions that draw, by what they are; those of C need the shim.
SOURCES = {
    "os.urandom": "os.urandom(8)",
    "os.getrandom": "os.getrandom(8)",
    "from os import urandom": "urandom(8)",
    "secrets.token_hex": "secrets.token_hex(8)",
    "secrets.randbelow": "secrets.randbelow(10**9)",
    "SystemRandom": "random.SystemRandom().random()",
    "random": "random.random()",
    "random.seed()": "(random.seed(), random.random())",
    "random.Random()": "random.Random().random()",
    "a subclass of Random": "Own().random()",
    "np.random": "np.random.rand()",
    "np.random.seed()": "(np.random.seed(), np.random.rand())",
    "RandomState()": "np.random.RandomState().rand()",
    "default_rng()": "np.random.default_rng().random()",
    "SeedSequence()": "np.random.SeedSequence().entropy",
    "Philox()": "np.random.Generator(np.random.Philox()).random()",
    "uuid1": "uuid.uuid1()",
    "uuid4": "uuid.uuid4()",
    "tempfile": "tempfile.mktemp()",
    "a hash": "hash('a name')",
    "a set": "[*{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k'}]",
}
SOURCES_IN_C = {
    "_random.Random()": "_random.Random().random()",
    "the device": "open('/dev/urandom', 'rb').read(8)",
    "the device, without a buffer": "os.read(os.open('/dev/random', os.O_RDONLY), 8)",
    "getrandom": "drawn('getrandom', 0)",
    "getentropy": "drawn('getentropy')",
    "a stream of C": "stream()",
}
PROGRAM = """
import ctypes, _random, os, random, secrets, sys, tempfile, uuid
from os import urandom
import numpy as np

class Own(random.Random):
    def seed(self, a=None, version=2):
        super().seed(a)

libc = ctypes.CDLL(None)
def drawn(function, *arguments):
    data = ctypes.create_string_buffer(8)
    assert getattr(libc, function)(data, 8, *arguments) >= 0
    return data.raw.hex()

def stream():
    libc.fopen.restype = ctypes.c_void_p
    file, data = ctypes.c_void_p(libc.fopen(b"/dev/urandom", b"r")), ctypes.create_string_buffer(8)
    assert libc.fread(data, 1, 8, file) == 8
    libc.fclose(file)
    return data.raw.hex()

for name, expression in {**SOURCES, **SOURCES_IN_C}.items():
    print(name, eval(expression), sep=": ")
"""
PROGRAM = PROGRAM.replace("{**SOURCES, **SOURCES_IN_C}", repr({**SOURCES, **SOURCES_IN_C}))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test has a folder of its own, and no hash seed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    return tmp_path


def script(text: str, name: str = "script.py") -> list[str]:
    pathlib.Path(name).write_text(text)
    return [name]


def plain(command: list[str]) -> str:
    return subprocess.check_output([sys.executable, *command], text=True)


def recorded(capfd, command: list[str], path="a.entropy", **options) -> tuple[str, Recording]:
    """What a program prints while it is recorded, and the recording that was read."""
    capfd.readouterr()
    status, _ = recordings.record_command(command, path, **options)
    out = capfd.readouterr().out
    found = recordings.read(path)
    assert found.status == status
    return out, found


def replayed(capfd, found: Recording, command: list[str] | None = None) -> str:
    capfd.readouterr()
    recordings.replay_command(found, command)
    return capfd.readouterr().out


def command(*arguments, **environment) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "repjax", *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# --- sources ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What a program that uses every source prints: in two plain runs, recorded, replayed."""
    before, path = os.getcwd(), tmp_path_factory.mktemp("sources")
    os.chdir(path)
    words = script(PROGRAM)
    outputs = [plain(words), plain(words)]
    with open("out", "w+b") as file:  # the functions print where this process does
        stdout = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            recordings.record_command(words, "a.entropy")
            size = os.fstat(1).st_size
            recordings.replay_command(recordings.read("a.entropy"))
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
            os.chdir(before)
    text = (path / "out").read_bytes().decode()
    outputs += [text[:size], text[size:]]
    return [dict(line.split(": ", 1) for line in x.splitlines()) for x in outputs]


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_replayed(name, runs):
    first, second, once, again = (run[name] for run in runs)
    assert once == again
    assert len({first, second, once}) == 3  # control


@needs_shim
@pytest.mark.parametrize("name", SOURCES_IN_C)
def test_a_source_in_c_is_replayed(name, runs):
    test_a_source_is_replayed(name, runs)


def test_without_the_shim_c_is_not_seen(capfd):
    """Which is a control of the tests above, and what the documentation says."""
    words = script("import _random, os; print(_random.Random().random(), os.urandom(4))")
    out, found = recorded(capfd, words, with_shim=False)
    again = replayed(capfd, found)
    assert out.split()[0] != again.split()[0] and out.split()[1] == again.split()[1]


def test_seeds_are_left_alone(capfd):
    words = script(
        "import random, numpy as np\nrandom.seed(3); np.random.seed(3)\n"
        "print(random.random(), random.Random(4).random(), np.random.rand(),"
        " np.random.default_rng(5).random(), random.Random('a').gauss(0, 1))"
    )
    out, found = recorded(capfd, words)
    assert out == plain(words) == replayed(capfd, found)


def test_a_key_of_jax(capfd):
    words = script(
        "import os, jax\n"
        "key = jax.random.key(int.from_bytes(os.urandom(4), 'big'))\n"
        "print(jax.random.bits(key, (4,)))"
    )
    out, found = recorded(capfd, words)
    assert out == replayed(capfd, found) and os.path.getsize("a.entropy") < 13_000


def test_the_hash_seed_that_is_set_is_kept(capfd, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    words = script("print(hash('a'))")
    out, found = recorded(capfd, words)
    assert found.about["hash_seed"] == 7 and out == plain(words)
    monkeypatch.setenv("PYTHONHASHSEED", "8")
    assert out == replayed(capfd, found) != plain(words)


TIMES = """
import datetime, pickle, sys, time, timeit
from time import perf_counter
class Day(datetime.datetime): pass
print(time.time(), time.time_ns(), time.monotonic(), time.monotonic_ns(), perf_counter())
print(time.perf_counter_ns(), datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc))
print(datetime.datetime.today(), datetime.date.today(), Day.now())
print(time.time(), time.localtime(), time.gmtime(None), time.asctime(), time.strftime("%X"))
print(time.time(), time.ctime())
print(time.ctime(0), time.strftime("%Y", time.gmtime(0)), file=sys.stderr)
now = datetime.datetime.now()
later = now + datetime.timedelta(1)
assert isinstance(now, datetime.datetime) and isinstance(later, datetime.datetime)
assert pickle.loads(pickle.dumps([now, later])) == [now, later] and later > now
parsed = datetime.datetime.strptime("2020", "%Y")
assert type(parsed) is datetime.datetime and pickle.loads(pickle.dumps(parsed)) == parsed
print(timeit.timeit("1 + 1", number=100), file=sys.stderr)  # a library's clock goes on
"""


def test_time(capfd):
    words = script(TIMES)
    out, found = recorded(capfd, words, time=True)
    time.sleep(1.1)
    assert replayed(capfd, found) == out
    (drawn,) = [x for (process, stream), x in found.streams.items() if stream == "MainThread"]
    assert {x.place.partition(":")[0] for x in drawn} == {"script.py"}
    assert len({x.source for x in drawn if x.length == 8}) == 7
    # Control: by default, time is not recorded.
    once, found = recorded(capfd, words, "b.entropy")
    again = replayed(capfd, found)
    assert all(x != y for x, y in zip(once.splitlines(), again.splitlines(), strict=True))


# --- threads and processes --------------------------------------------------------------

WORKERS = """
import concurrent.futures, multiprocessing, os, random, subprocess, sys, threading, time
import numpy as np

def draw(tag, queue=None):
    time.sleep(time.time_ns() % 1000 / 2e4)  # other orders in every run
    numbers = random.SystemRandom().random(), np.random.default_rng().random()
    found = str(tag), os.urandom(4).hex(), *numbers
    return found if queue is None else queue.put((*found, random.random()))

def threads():
    found = []
    many = [threading.Thread(target=lambda i=i: found.append(draw(i))) for i in range(4)]
    many += [threading.Thread(target=lambda: found.append(draw(9)), name="a thread") for _ in "a"]
    for x in many: x.start()
    for x in many: x.join()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wait = threading.Barrier(2)
        found += pool.map(lambda i: (wait.wait(), draw(i))[1], ["x", "x"])
    return found

def processes(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    many = [context.Process(target=draw, args=(i, queue)) for i in range(3)]
    many += [context.Process(target=draw, args=(9, queue), name="a process")]
    for x in many: x.start()
    found = [queue.get() for _ in many]
    for x in many: x.join()
    return found

def programs():
    program = "import os, random; print(random.random(), os.urandom(3).hex(), hash('a'))"
    many = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=x)
        for x in (None, {**os.environ, "A": "1"}, None)
    ]
    return [x.communicate()[0] for x in many]

def forks():
    for i in range(2):
        if os.fork() == 0:
            print(i, random.random(), os.urandom(3).hex(), flush=True)
            os._exit(0)
        os.wait()
    return [random.random()]

if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    for x in sorted(globals()[what](*arguments)): print(x)
"""


@pytest.mark.parametrize(
    "words", ["threads", "processes spawn", "processes fork", "processes forkserver", "programs"]
)
def test_workers_are_replayed(words, capfd):
    """Whatever runs first: each thread and each process has a stream of its own."""
    words = [*script(WORKERS), *words.split()]
    out, found = recorded(capfd, words)
    assert out == replayed(capfd, found) != plain(words)  # the last is a control
    assert len(found.streams) > 3


def test_forks_are_replayed(capfd):
    words = [*script(WORKERS), "forks"]
    out, found = recorded(capfd, words)
    assert out == replayed(capfd, found)
    lines = out.split()
    assert len({*lines}) == len(lines) == 7  # the numbers of children are their own
    names = {process for process, _ in found.streams}
    assert names == {"main", "main/fork", "main/fork-2"}


def test_names_of_streams(capfd):
    words = [*script(WORKERS), "processes", "spawn"]
    _, found = recorded(capfd, words)
    names = {process for process, _ in found.streams}
    assert names == {"main", "main/a process", *(f"main/SpawnProcess-{i}" for i in (1, 2, 3))}


def test_threads_of_one_name_are_warned_of(capfd):
    words = script(
        "import os, threading\n"
        "wait = threading.Barrier(2)\n"
        "def draw(): os.urandom(4); wait.wait()\n"
        "for _ in 'ab': threading.Thread(target=draw, name='x').start()\n"
    )
    recordings.record_command(words, "a.entropy")
    assert "names of their own, received two with 'x'" in capfd.readouterr().err
    # One after the other they have an order.
    again = "import os, threading\nfor i in (1, 2):\n    x = threading.Thread(target=os.urandom, "
    words = script(again + "args=(i,), name='x'); x.start(); x.join()\n")
    _, found = recorded(capfd, words, "b.entropy")
    assert {("main", "x"), ("main", "x#2")} <= found.streams.keys()
    assert "names of their own" not in capfd.readouterr().err


def test_the_own_sitecustomize_runs_too(capfd, monkeypatch, folder):
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("import builtins; builtins.own = 'it ran'")
    paths = [str(folder / "own"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    words = script("import sys; print(own, [x for x in sys.path if 'at_start' in x])")
    assert recorded(capfd, words)[0] == "it ran []\n"


NESTED = """
import os, pathlib
from repjax.verify import record, recordings, replay
pathlib.Path("inner.py").write_text("import os; print(os.urandom(3).hex(), flush=True)")
with record("block.entropy"):
    first = os.urandom(3)
with replay("block.entropy"):
    assert os.urandom(3) == first
print(os.urandom(3), flush=True)
recordings.record_command(["inner.py"], "inner.entropy", with_shim=False)
recordings.replay_command(recordings.read("inner.entropy"))
for x in ("block.entropy", "inner.entropy"):
    os.remove(x)
"""


def test_a_recorder_is_recorded(capfd):
    """What it draws itself, that is; the program that it records draws anew."""
    out, found = recorded(capfd, script(NESTED))
    mine, first, again = out.splitlines()
    assert first == again
    other = replayed(capfd, found).splitlines()
    assert other[0] == mine and other[1] == other[2] != first


# --- strictness -------------------------------------------------------------------------

STRICT = """
import ctypes, os, random, sys, threading, uuid
mode = sys.argv[1] if len(sys.argv) > 1 else ""
os.urandom(8)
def other(): {
    "source": lambda: random.SystemRandom().getrandbits(64),
    "length": lambda: os.urandom(9),
    "order": lambda: uuid.uuid4(),
    "nothing": lambda: sys.exit(),
}.get(mode, lambda: os.urandom(8))()
try: other()
except Exception: mode == "caught" or sys.exit("raised")
uuid.uuid4()
if mode == "more": os.urandom(1)
thread = threading.Thread(target=lambda: mode != "thread" or os.urandom(3), name="x")
thread.start(), thread.join()
"""
HERE = r"script\.py:(\d+)"


@pytest.mark.parametrize(
    "mode, message",
    [
        (
            "source",
            rf"draw 2 of MainThread: expected 8 bytes of os.urandom, as at {HERE} of the "
            rf"recording, received 8 bytes of random.SystemRandom at {HERE}",
        ),
        (
            "length",
            rf"expected 8 bytes of os.urandom, as at {HERE} .*, received 9 bytes .* at {HERE}",
        ),
        (
            "order",
            rf"expected 8 bytes of os.urandom, as at {HERE} .*, received 16 bytes of uuid.* {HERE}",
        ),
        (
            "nothing",
            rf"expected 8 bytes of os.urandom, as at {HERE} of the recording, received the end "
            rf"after the last draw, 8 bytes of os.urandom at {HERE}",
        ),
        (
            "more",
            r"draw 4 of MainThread: expected no more draws than the recording has \(the last is "
            rf"16 bytes of uuid.uuid4 at {HERE}\), received 1 byte of os.urandom at {HERE}",
        ),
        (
            "thread",
            rf"draw 1 of x: expected no more draws .*there are none.*, received 3 bytes .* {HERE}",
        ),
    ],
)
def test_another_draw_is_refused(mode, message, capfd):
    _, found = recorded(capfd, script(STRICT))
    with pytest.raises(EntropyError, match=message):
        replayed(capfd, found, ["script.py", mode])
    if mode != "nothing":  # the program has the error, too
        said = capfd.readouterr().err
        assert "raised" in said or "EntropyError" in said
    assert replayed(capfd, found) == ""


def test_an_error_that_the_program_catches_is_found(capfd):
    words = script(STRICT.replace('"length"', '"caught"'))
    _, found = recorded(capfd, words)
    with pytest.raises(EntropyError, match=rf"received 9 bytes of os.urandom at {HERE}"):
        replayed(capfd, found, [*words, "caught"])


@needs_shim
@pytest.mark.parametrize("other", ["getentropy(data, 4)", "getrandom(data, 5, 0)", "getpid()"])
def test_another_draw_in_c_is_refused(other, capfd):
    text = (
        "import ctypes, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "data = ctypes.create_string_buffer(8)\nprint(libc.{}, ctypes.get_errno())\n"
    )
    _, found = recorded(capfd, script(text.format("getrandom(data, 4, 0)")))
    with pytest.raises(EntropyError, match=r"draw 1 of native: expected 4 bytes of getrandom, as"):
        replayed(capfd, found, script(text.format(other), "other.py"))
    assert other == "getpid()" or "expected 4 bytes of getrandom, as at" in capfd.readouterr().err


def test_a_recording_that_is_longer_than_its_limit(capfd):
    words = script("import os\nprint(len(os.urandom(1 << 24)))\nos.urandom((1 << 24) + 1)\n")
    assert recorded(capfd, words)[0] == f"{1 << 24}\n"
    script("import os; os.urandom((1 << 24) + 1)")
    assert recordings.record_command(words, "b.entropy")[0] == 1
    assert "expected at most 16777216 bytes at once" in capfd.readouterr().err


# --- what is left of a program that ends early -----------------------------------------


@pytest.mark.parametrize(
    "end, status",
    [("os.kill(os.getpid(), 9)", -9), ("raise KeyError('no')", 1), ("raise SystemExit(7)", 7)],
)
def test_a_program_that_fails_leaves_what_it_drew(end, status, capfd):
    words = script(f"import os; print(os.urandom(4).hex(), flush=True); {end}\n")
    out, found = recorded(capfd, words)
    assert found.status == status and f"{len(found.streams['main', 'MainThread'])}" >= "1"
    assert recordings.replay_command(found) == status and capfd.readouterr().out == out
    script(f"import os; print(os.urandom(4).hex(), flush=True); os.urandom(5); {end}\n")
    with pytest.raises(EntropyError, match="expected no more draws than the recording has"):
        replayed(capfd, found)


def test_a_recorder_that_is_told_to_end(folder):
    """It ends the program, and keeps what was drawn; from another thread there are no signals."""
    words = script("import os, time; print(os.urandom(4).hex(), flush=True); time.sleep(600)")
    text = f"from repjax.verify import recordings; recordings.record_command({words}, 'a.entropy')"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as recorder:
        drawn = recorder.stdout.readline()
        recorder.terminate()
    found = recordings.read("a.entropy")
    ((draw,),) = found.streams.values()
    assert found.status == -signal.SIGTERM and draw.data.hex() == drawn.decode().strip()
    script("import os; os.urandom(4)")
    thread = threading.Thread(target=recordings.record_command, args=(words, "b.entropy"))
    thread.start()
    thread.join()
    assert recordings.read("b.entropy").status == 0


def test_what_is_left_by_a_recorder_that_is_killed(folder, capfd):
    words = script("import os, time; print(os.urandom(4).hex(), flush=True); time.sleep(600)")
    text = f"from repjax.verify import recordings; recordings.record_command({words}, 'a.entropy')"
    recorder = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    drawn = recorder.stdout.readline()
    os.killpg(recorder.pid, signal.SIGKILL)
    recorder.wait()
    recorder.stdout.close()
    with pytest.raises(RecordingError, match="no file; repjax record --finish --out"):
        recordings.read("a.entropy")
    with pytest.raises(RecordingError, match="seal it by repjax record --finish"):
        recordings.record_command(words, "a.entropy")
    with open(next(folder.glob("a.entropy.parts/*.draws")), "ab") as file:
        file.write(b'["MainThread", "os.uran')  # a line that was cut short
    recordings.finish("a.entropy")
    found = recordings.read("a.entropy")
    assert found.status is None and not (folder / "a.entropy.parts").exists()
    script("import os; print(os.urandom(4).hex())")
    assert replayed(capfd, found) == drawn
    with pytest.raises(RecordingError, match="entropy, which is finished"):
        recordings.finish("a.entropy")


# --- files ------------------------------------------------------------------------------

ABOUT = {
    "command": ["script.py"],
    "script": None,
    "whole": True,
    "time": False,
    "shim": False,
    "hash_seed": 1,
    "versions": {},
}


def test_a_file_is_read_as_it_was_written():
    draws = [Draw("os.urandom", "a.py:1", 3, bytes([i % 256] * 3)) for i in range(10_000)]
    draws += [Draw("os.urandom", "a.py:2", 1 << 22, bytes(1 << 22))] * 2
    streams = {("main", "MainThread"): draws, ("main/a", "x#2"): draws[:1]}
    recordings.write("a.entropy", Recording(ABOUT, 0, streams))
    found = recordings.read("a.entropy")
    assert (found.about, found.status, found.streams) == (ABOUT, 0, streams)
    assert str(found) == "10003 draws, 8418611 bytes, 2 streams"


def test_a_changed_file_is_refused():
    draws = [Draw("os.urandom", "a.py:1", 4, b"abcd")] * 3
    recordings.write("a.entropy", Recording(ABOUT, 0, {("main", "MainThread"): draws}))
    path, whole = pathlib.Path("a.entropy"), pathlib.Path("a.entropy").read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(RecordingError, match=r"cut short|expected a recording"):
            recordings.read(path)
    for i in range(0, len(whole), 7):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with pytest.raises(RecordingError):
            recordings.read(path)
    path.write_bytes(whole + whole[:70])
    with pytest.raises(RecordingError, match=r"cut short|expected the seal"):
        recordings.read(path)


FIRST = {"kind": "entropy", "format": "repjax entropy", "version": 1, **ABOUT}
DRAWS = {"kind": "draws", "process": "main", "stream": "x", "draws": [["os.urandom", "a:1", "00"]]}
END = {"kind": "end", "draws": 1, "status": 0}


@pytest.mark.parametrize(
    "records, message",
    [
        ([{**FIRST, "version": 2}, DRAWS, END], "expected repjax entropy, version 1, received"),
        ([{**FIRST, "format": "repjax run"}, END], "received 'repjax run'"),
        ([FIRST, DRAWS], "cut short"),
        ([FIRST, DRAWS, {**END, "draws": 2}], "expected the records of a recording"),
        ([FIRST, {**DRAWS, "draws": [["os.urandom", "a:1", "0"]]}, END], "non-hexadecimal"),
        ([FIRST, {**DRAWS, "draws": 3}, END], "expected the records of a recording"),
        ([FIRST, {**DRAWS, "kind": "step"}, END], "a record of the kind 'step'"),
        ([{**FIRST, "hash_seed": 1 << 32}, DRAWS, END], "the hash seed is 4294967296"),
        ([{**FIRST, "command": [3]}, DRAWS, END], r"the command is \[3\]"),
        ([{**FIRST, "shim": "yes"}, DRAWS, END], "shim is 'yes'"),
        ([], "cut short"),
    ],
)
def test_a_file_of_something_else_is_refused(records, message):
    with open("a.entropy", "wb", buffering=0) as file:
        log = logs.Writer(file)
        for x in records:
            log.write(x)
    with pytest.raises(RecordingError, match=message):
        recordings.read("a.entropy")


@pytest.mark.parametrize(
    "content, message",
    [(None, "which is no file"), (b"text\n", "expected the seal"), (bytes(99), "another file")],
    ids=["none", "text", "zeros"],
)
def test_a_foreign_file_gives_one_sentence(content, message, folder):
    if content is not None:
        (folder / "a.entropy").write_bytes(content)
    result = command("replay", "a.entropy")
    assert result.returncode == 2 and message in result.stderr
    assert result.stderr.startswith("repjax replay: ") and result.stderr.count("\n") == 1


# --- the commands -----------------------------------------------------------------------


def test_the_commands(folder):
    words = script("import os, sys; print(os.urandom(4).hex(), sys.argv[1:]); sys.exit(7)")
    first = command("record", "--out", "a.entropy", "--", *words, "--epochs", "1")
    assert first.returncode == 7 and "a.entropy: 1 draw, 4 bytes, 1 stream" in first.stderr
    assert "the script ended with status 7; recorded is what it drew" in first.stderr
    again = command("replay", "a.entropy")
    assert (again.returncode, again.stdout) == (7, first.stdout)
    other = command("replay", "a.entropy", "--", *words, "--epochs", "2")
    assert other.stdout == first.stdout.replace("1", "2") or "'2'" in other.stdout
    assert "warning: expected the command ['script.py', '--epochs', '1'], received" in other.stderr


def test_a_module(folder):
    script("import os; print(os.urandom(4).hex(), __name__)", "module.py")
    first = command("record", "--out", "a.entropy", "-m", "module")
    again = command("replay", "a.entropy", "--", "-m", "module")
    assert first.stdout.endswith(" __main__\n") and first.stdout == again.stdout
    assert "warning" not in again.stderr


def test_another_script_is_warned_of(capfd):
    recorded(capfd, script("import os; os.urandom(4)"))
    found = recordings.read("a.entropy")
    assert [*recordings._differences(found, ["script.py"])] == []
    script("import os; os.urandom(4)  # edited")
    (text,) = recordings._differences(found, ["script.py"])
    assert "received another one, or one that was edited" in text


def test_what_cannot_be_recorded(folder, monkeypatch):
    words = script("")
    for out, given, error, message in (
        ("a.entropy", ["nothing.py"], ScriptError, "expected a script, received nothing.py"),
        ("a.entropy", ["-m", "nothing"], ScriptError, "expected a module, received 'nothing'"),
        ("a.entropy", ["-m"], ScriptError, "expected a module, received none"),
        ("a.entropy", [], ScriptError, "expected a script, received none"),
        ("script.py", words, RecordingError, "expected no file, received one"),
        ("nowhere/a.entropy", words, RecordingError, "in a folder that can be written"),
    ):
        with pytest.raises(error, match=message):
            recordings.record_command(given, out)
    monkeypatch.setattr(recordings, "_AT_START", folder)
    with pytest.raises(RecordingError, match="received nothing of it"):
        recordings.record_command(words, "a.entropy")
    result = command("record", "--out", "a.entropy")
    assert result.returncode == 2
    assert result.stderr == "repjax record: expected a script, received none\n"
    assert sorted(x.name for x in folder.iterdir()) == ["script.py"]  # nothing was left


def test_a_shim_that_is_not_there(capfd, monkeypatch, folder):
    words = script("")
    monkeypatch.setattr(recordings, "__file__", str(folder / "recordings.py"))
    with pytest.raises(RecordingError, match="--shim: expected the C shim, received none: it is"):
        recordings.record_command(words, "a.entropy", with_shim=True)
    _, found = recorded(capfd, words)
    assert not found.about["shim"]
    about = {**found.about, "shim": True}
    with pytest.raises(RecordingError, match="expected the C shim, with which it was recorded"):
        recordings.replay_command(Recording(about, 0, found.streams))


@needs_shim
def test_a_shim_of_other_sources_is_not_used(monkeypatch, folder):
    (folder / "other.c").write_text("int x;")
    monkeypatch.setattr(recordings, "_SHIM_SOURCE", folder / "other.c")
    assert "compiled from other sources; install repjax anew" in recordings.shim()[1]


# --- blocks -----------------------------------------------------------------------------


def _draws() -> list[object]:
    found: list[object] = []

    def draw():
        found.extend([os.urandom(3), np.random.default_rng().random()])

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    found += [uuid.uuid4(), random.random(), random.Random().random(), random.gauss(0, 1)]
    found += [np.random.rand(), np.random.normal(), np.random.RandomState().rand()]
    return found


def test_a_block_is_replayed():
    random.gauss(0, 1), np.random.normal()  # which keep half of what they draw
    before = os.urandom, random.seed, uuid.uuid4, random.getstate(), dict(os.environ)
    with record("a.entropy"):
        first = _draws()
    after = os.urandom, random.seed, uuid.uuid4, random.getstate(), dict(os.environ)
    assert before == after
    between = _draws()
    with replay("a.entropy"):
        again = _draws()
    assert first == again
    # What the block had of the generators' states is given back, so that these agree.
    assert [x == y for x, y in zip(first, between, strict=True)].count(True) == 4


def test_a_block_is_strict():
    with record("a.entropy"):
        os.urandom(3)
    with pytest.raises(EntropyError, match=r"expected 3 bytes of os.urandom, as at .*test_replay"):  # noqa: SIM117
        with replay("a.entropy"):
            os.urandom(4)
    with pytest.raises(EntropyError, match="received the end after the last draw"):  # noqa: SIM117
        with replay("a.entropy"):
            pass
    with pytest.raises(KeyError), replay("a.entropy"):
        raise KeyError("the block's own")
    assert os.urandom is entropy.os.urandom and len(os.urandom(5)) == 5


def test_the_time_of_a_block():
    stock = time.time, datetime.datetime
    with record("a.entropy", time=True):
        first = time.time(), time.monotonic_ns(), datetime.datetime.now(), os.urandom(2)
    time.sleep(0.01)
    with replay("a.entropy"):
        again = time.time(), time.monotonic_ns(), datetime.datetime.now(), os.urandom(2)
    assert first == again and (time.time, datetime.datetime) == stock
    assert time.time() > again[0] and datetime.datetime.now() > again[2]


def test_a_block_that_fails_is_recorded():
    with pytest.raises(KeyError), record("a.entropy"):
        first = os.urandom(3)
        raise KeyError
    with replay("a.entropy"):
        assert os.urandom(3) == first


def test_blocks_and_programs_are_told_apart(capfd):
    with record("a.entropy"):
        pass
    with pytest.raises(RecordingError, match="expected a recording of a whole program"):
        recordings.replay_command(recordings.read("a.entropy"))
    recorded(capfd, script(""), "b.entropy")
    with pytest.raises(RecordingError, match="use repjax replay b"), replay("b.entropy"):
        pass
    with pytest.raises(RecordingError, match="expected no file"), record("a.entropy"):
        pass


def test_the_page_has_the_figures_of_the_results():
    result = json.loads((ROOT / "benchmarks" / "results" / "record_replay.json").read_text())
    runs, rows = result["runs"], result["comparisons"]
    assert runs["pairs"] == ["identical bits"] * 16 and {*runs["plain pairs"]} == {"different"}
    processor = {x["second"]: x for x in rows if (x["time"], x["first"]) == ("processor", "plain")}
    ratios = [f"{(x['ratio of medians'] - 1) * 100:.1f} % ({n})" for n, x in processor.items()]
    deltas = [f"{x['delta']:.2f}" for x in processor.values()]
    page = " ".join((ROOT / "docs" / "instruments.md").read_text().split())
    assert f"at most {max(runs['sizes'])} bytes" in page and max(runs["sizes"]) <= 13_000
    assert " and ".join(ratios) in page and f"Cliff's delta of {' and '.join(deltas)}." in page
    assert min(x["p"] for x in rows) > 0.14


def test_a_name_is_hashed_as_in_c():
    """FNV-1a's published values."""
    assert entropy.file_name("") == "cbf29ce484222325"
    assert entropy.file_name("foobar") == "85944171f73967e8"
    assert re.fullmatch("[0-9a-f]{16}", entropy.file_name(json.dumps("é")))
