"""Where a Python process draws entropy, and the streams of what it drew.

A :class:`Session` patches each source where it draws, so that what a library holds of it follows:

====================================  ======================================================
``os.urandom``, ``os.getrandom``      by themselves, in ``os`` and ``posix``
``secrets``, ``random.SystemRandom``  ``random._urandom``, which they call
``random.seed()``, ``Random()``       ``random.Random.seed``, which without it draws in C
``random.random()``, ...              the module's generator is seeded when it is imported
``numpy.random``                      ``bit_generator.randbits``, which every seed comes from
``uuid``                              ``uuid4``, and those with the time in them
``tempfile``                          by ``random.Random()``
the time, if asked for                functions of ``time``, ``datetime.now``; in user's files
====================================  ======================================================

**Streams.**  Each thread of each process has a stream of its own, so that scheduling does not
matter.  A thread is known by its name; a process by the name of its parent and its own in
``multiprocessing``, or as the parent's first, second, ... child.  Two threads that live at the same
time need different names.  What ``random``, ``numpy.random`` and ``multiprocessing`` draw when they
are imported has streams of its own, since any thread may come first.

A session writes what was drawn into a folder, one file a process and one line a draw, by one
call each; :mod:`repjax.verify.recordings` seals them.  In a replay it serves what was recorded, and
raises :class:`EntropyError` where another source, length or order is asked for.

The interpreter of a recorded program runs this file first (``at_start/sitecustomize.py``), and
without the package.  So it imports nothing but the standard library, and little of that.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import importlib.machinery
import itertools
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

#: Variables of the environment: the folder of a session, and the name of a process that starts.
FOLDER, PROCESS = "REPJAX_ENTROPY", "REPJAX_ENTROPY_PROCESS"
#: In the folder: what the session is, and in a replay a mark that the C shim looks for.
SESSION, IS_REPLAY = "session.json", "replay"
MAIN = "main"
#: Bytes that a generator of ``random`` is seeded with, and the most that one draw has.
SEED_BYTES, MOST_BYTES_OF_A_DRAW = 32, 1 << 24
#: Functions of ``time`` whose result is a float, or an integer of nanoseconds.
CLOCKS = ("time", "monotonic", "perf_counter")

_STANDARD = os.path.dirname(os.__file__) + os.sep
_MISSING = object()
try:
    _HERE = os.getcwd() + os.sep
except OSError:  # a folder that is no more
    _HERE = os.sep


class EntropyError(RuntimeError):
    """Entropy that is not drawn as it was recorded, or cannot be recorded."""


class Draw(NamedTuple):
    """What was drawn: the source, the ``file:line`` that drew it, its bytes and their number."""

    source: str
    place: str
    length: int
    data: bytes | None

    def __str__(self) -> str:
        return f"{self.length} byte{'s' * (self.length != 1)} of {self.source}"


def departure(
    stream: str, drawn: list[Draw], n: int, received: Draw | None, last: Draw | None = None
) -> str | None:
    """How draw n of a replay departs from the recorded ones, or None: what error messages say.

    ``received`` is None where the program ended without it, its last draw being ``last``.
    """
    which = f"draw {n + 1} of {stream}"
    remedy = "replay the program as it was recorded, or record it anew"
    if n >= len(drawn):
        if received is None:
            return None
        before = f"the last is {drawn[-1]} at {drawn[-1].place}" if drawn else "there are none"
        return (
            f"{which}: expected no more draws than the recording has ({before}), received "
            f"{received} at {received.place}; {remedy}"
        )
    expected = f"expected {drawn[n]}, as at {drawn[n].place} of the recording"
    if received is None:
        before = f"{last} at {last.place}" if last else "none"
        return f"{which}: {expected}, received the end after the last draw, {before}; {remedy}"
    if (received.source, received.length) == (drawn[n].source, drawn[n].length):
        return None
    return f"{which}: {expected}, received {received} at {received.place}; {remedy}"


def file_name(process: str) -> str:
    """The name of a process as a file's: FNV-1a, 64 bits, as the C shim has it."""
    total = 0xCBF29CE484222325
    for byte in process.encode():
        total = (total ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{total:016x}"


def shown(process: str, stream: str) -> str:
    return stream if process == MAIN else f"{process}, {stream}"


# --- places -----------------------------------------------------------------------------


@functools.cache
def _is_library(file: str) -> bool:
    """Whether a file is the standard library's, or of an installed package, or ours."""
    return (
        file.startswith(_STANDARD)
        or file == __file__
        or (file.startswith("<") and file not in ("<string>", "<stdin>"))
        or "site-packages" in file
        or "dist-packages" in file
    )


def _place(frame: FrameType | None) -> str:
    """The innermost ``file:line`` of a user's file; else of the outermost frame."""
    last = frame
    while frame is not None:
        last = frame
        if not _is_library(frame.f_code.co_filename):
            break
        frame = frame.f_back
    if last is None:
        return "the interpreter"
    return f"{last.f_code.co_filename.removeprefix(_HERE)}:{last.f_lineno}"


# --- sessions ---------------------------------------------------------------------------


class Session:
    """A recording or a replay in this process.

    Args:
      folder: where :mod:`repjax.verify.recordings` put the session's settings, and finds what was
        drawn.
      process: the name of this process.
    """

    def __init__(self, folder: str, process: str):
        with open(os.path.join(folder, SESSION), encoding="utf-8") as file:
            settings = json.load(file)
        self.folder = folder
        self._recorded = settings["expected"]  # draws by process and stream, or None
        self.has_time = settings["time"]
        self.active = False
        self.urandom = os.urandom
        self.has_random = False  # whether the module random is there and patched
        self._undo: list[Callable[[], object]] = []
        self._shim = _shim()
        self._names = _thread.RLock()
        self._begin(process)

    def _begin(self, process: str) -> None:
        """Start the streams of a process."""
        self.process = process
        self._lock = _thread.RLock()  # what is collected while it is held may draw, too
        self._local = _thread._local()
        self._file: int | None = None
        self._counts: dict[str, int] = {}  # draws of a replay by stream
        self._streams: dict[str, list[Draw]] = {}  # what was recorded
        self._threads: dict[str, list[Any]] = {}  # those that drew, by name
        self._children: dict[str, int] = {}
        self._failure: str | None = None
        # For processes that are started in another way than by subprocess and multiprocessing.
        os.environ[PROCESS] = f"{process}/child"
        if self._shim:
            self._shim.repjax_entropy_process(process.encode())

    # --- draws

    def draw(self, source: str, length: int, fresh: Callable[[], bytes]) -> bytes:
        """Entropy: ``fresh()`` while recording, else what was recorded.

        Raises:
          EntropyError: it was recorded otherwise; from then on, for every draw.
        """
        if getattr(self._local, "silent", False):
            return fresh()
        if length > MOST_BYTES_OF_A_DRAW:
            raise EntropyError(
                f"{source}: expected at most {MOST_BYTES_OF_A_DRAW} bytes at once, received "
                f"{length}; draw a seed, and make numbers of it"
            )
        place = _place(sys._getframe(1))
        stream = self._stream()
        data = None
        if self._recorded is None:
            with self.silent():
                data = fresh()
        with self._lock:
            if self._failure is not None:
                raise EntropyError(self._failure)
            received = Draw(source, place, length, data)
            if self._recorded is not None:
                drawn = self._expected(stream)
                n = self._counts.get(stream, 0)
                self._failure = departure(shown(self.process, stream), drawn, n, received)
                data = drawn[n].data if self._failure is None else None
                self._counts[stream] = n + 1
            self._write(stream, received._replace(data=data))
            if self._failure is not None:
                raise EntropyError(self._failure)
        assert data is not None
        return data

    def _stream(self) -> str:
        """The name of this thread's stream."""
        name = getattr(self._local, "name", None)
        if name is not None:
            return name
        threading = sys.modules.get("threading")
        thread = threading.current_thread() if threading else None
        base = thread.name if thread else "MainThread"
        if base.startswith(("native", "import ")):  # names of other streams
            base = f"thread {base}"
        with self._names:
            earlier = self._threads.setdefault(base, [])
            if any(x is not None and x.is_alive() for x in earlier):
                import warnings

                warnings.warn(
                    f"repjax: expected threads that draw entropy at the same time to have names of "
                    f"their own, received two with {base!r}; name them, or a replay may give one "
                    "what the other drew",
                    RuntimeWarning,
                    stacklevel=4,
                )
            earlier.append(thread)
            name = base if len(earlier) == 1 else f"{base}#{len(earlier)}"
        self._local.name = name
        return name

    @contextlib.contextmanager
    def within(self, stream: str) -> Iterator[None]:
        """What is drawn once, by the thread that comes first, has a stream of its own."""
        before = getattr(self._local, "name", None)
        self._local.name = stream
        try:
            yield
        finally:
            self._local.name = before

    def _expected(self, stream: str) -> list[Draw]:
        """What was recorded in a stream of this process."""
        if stream not in self._streams:
            found = self._recorded.get(self._claimed(), {}).get(stream, [])
            self._streams[stream] = [Draw(s, p, n, bytes.fromhex(x)) for s, p, n, x in found]
        return self._streams[stream]

    def _claimed(self) -> str:
        """The name of this process, once no other one has it."""
        if self._file is None:
            self._file, self.process = claim(self.folder, self.process)
        return self.process

    def _write(self, stream: str, draw: Draw) -> None:
        self._claimed()
        data = None if draw.data is None else draw.data.hex()
        line = json.dumps([stream, draw.source, draw.place, draw.length, data])
        os.write(self._file, f"{line}\n".encode())

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """What a source draws to make what is drawn from it is not recorded, nor by the shim."""
        self._local.silent = True
        self._pause_shim(1)
        try:
            yield
        finally:
            self._local.silent = False
            self._pause_shim(-1)

    def _pause_shim(self, by: int) -> None:
        if self._shim:
            self._shim.repjax_entropy_pause(by)

    # --- processes

    def child(self, kind: str) -> str:
        """A name for the next child of a kind."""
        stream = self._stream()
        kind = kind if stream == "MainThread" else f"{stream}:{kind}"
        with self._names:
            count = self._children[kind] = self._children.get(kind, 0) + 1
        return f"{self.process}/{kind}" + (f"-{count}" if count > 1 else "")

    @contextlib.contextmanager
    def naming(self, kind: str) -> Iterator[str]:
        """A block that starts one child."""
        with self._names:  # the environment is the whole process's
            name = self.child(kind)
            before = os.environ.get(PROCESS)
            os.environ[PROCESS] = self._local.child = name
            try:
                yield name
            finally:
                self._local.child = None
                if self.process != name:  # else this is the child
                    os.environ[PROCESS] = before or f"{self.process}/child"

    def _before_fork(self) -> None:
        if self.active:
            self._local.forking = getattr(self._local, "child", None) or self.child("fork")

    def _after_fork(self) -> None:
        if self.active:
            self._names = _thread.RLock()
            if self._file is not None:
                os.close(self._file)
            self._begin(self._local.forking)
            self._pause_shim(1 if self.has_random else 0)  # random seeds itself, in C

    def after_random(self) -> None:
        """After a fork, and after the module random has seeded itself."""
        if self.active:
            self._pause_shim(-1)
            sys.modules["random"].seed()

    # --- patches

    def start(self) -> None:
        """Patch what is imported, and the rest when it is."""
        self.active = True
        _at_fork(before=self._before_fork, after_in_child=self._after_fork)
        _patch_os(self)
        _restart_counters(self)
        patches = dict(_PATCHES)
        if self.has_time:
            _patch_time(self)
        else:
            del patches["datetime"]
        importing = _Importing(self, patches)
        for name in [*patches]:
            if name in sys.modules:
                patches.pop(name)(self, sys.modules[name], True)
        sys.meta_path.insert(0, importing)
        self.on_stop(lambda: sys.meta_path.remove(importing))

    def stop(self) -> None:
        """Take all patches back."""
        self.active = False
        while self._undo:
            self._undo.pop()()
        if self._file is not None:
            os.close(self._file)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until :meth:`stop`."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self.on_stop(lambda: delattr(owner, name))
        else:
            self.on_stop(lambda: setattr(owner, name, before))

    def on_stop(self, function: Callable[[], object]) -> None:
        self._undo.append(function)


#: Nothing where processes are not forked.
_at_fork = getattr(os, "register_at_fork", lambda **_: None)


def claim(folder: str, process: str) -> tuple[int, str]:
    """A file for the draws of a process, and its name, with a number where others have had it."""
    stem, number = file_name(process), 1
    while True:
        name = process if number == 1 else f"{process}#{number}"
        path = os.path.join(folder, f"{stem}-{number}.draws")
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            number += 1
            continue
        os.write(file, f"{json.dumps(name)}\n".encode())
        return file, name


def _shim() -> Any:
    """The functions of the C shim, if it is loaded."""
    if "_entropy_shim" not in os.environ.get("LD_PRELOAD", ""):
        return None
    import ctypes

    library = ctypes.CDLL(None)
    return library if hasattr(library, "repjax_entropy_pause") else None


def install(folder: str) -> None:
    """Record or replay this process from here to its end: for the start of an interpreter."""
    process = os.environ.get(PROCESS, MAIN)
    if any("multiprocessing.resource_tracker" in x for x in sys.orig_argv):
        # It draws for itself, and has the environment of a worker.
        if shim := _shim():
            shim.repjax_entropy_process(b"")
        return
    if any("multiprocessing.forkserver" in x for x in sys.orig_argv):
        # It starts with the first worker, whose name the environment has.
        process = f"{process.rpartition('/')[0]}/forkserver"
    session = Session(folder, process)
    if process == MAIN:
        session._claimed()  # which says that this has been reached
    session.start()


class _Importing:
    """Patches modules when they have been imported: a finder of ``sys.meta_path``."""

    def __init__(self, session: Session, patches: dict[str, Callable[..., None]]):
        self.session, self.patches = session, patches

    def find_spec(self, name: str, path=None, target=None):
        if name not in self.patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            patch = self.patches.pop(name)
            spec.loader = _Loader(spec.loader, self.session, patch)
        return spec


class _Loader:
    """A module's own loader, and the patch that comes after it."""

    def __init__(self, loader: Any, session: Session, patch: Callable[..., None]):
        self.loader, self.session, self.patch = loader, session, patch

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        with self.session.within(f"import {module.__name__}"):
            # The module random draws a seed in C, in whose place comes that of the patch.
            is_random = self.patch is _patch_random
            with self.session.silent() if is_random else contextlib.nullcontext():
                self.loader.exec_module(module)
            self.patch(self.session, module, False)


# --- sources ----------------------------------------------------------------------------
#
# Each takes the session, the module, and whether it was imported before: its state then is what
# other draws made of it, and is recorded as it is.


def _patch_os(session: Session) -> None:
    urandom = session.urandom

    def drawn(size: Any, /) -> bytes:
        if not hasattr(size, "__index__") or size.__index__() < 0:
            return urandom(size)  # which says what is wrong
        return session.draw("os.urandom", size.__index__(), lambda: urandom(size))

    owners = [os, sys.modules.get("posix", os)]
    for owner in owners:
        session.set(owner, "urandom", drawn)
    if not hasattr(os, "getrandom"):
        return
    getrandom = os.getrandom

    def drawn_with_flags(size: Any, flags: int = 0) -> bytes:
        if not hasattr(size, "__index__") or size.__index__() < 0:
            return getrandom(size, flags)

        def fresh() -> bytes:
            data = getrandom(size, flags)
            return data + urandom(size - len(data))  # a signal may have cut it short

        return session.draw("os.getrandom", size.__index__(), fresh)

    for owner in owners:
        session.set(owner, "getrandom", drawn_with_flags)


def _restart_counters(session: Session) -> None:
    """Threads and processes of a block get the names that they have in a new interpreter."""
    for module, owner, name in (
        ("threading", "", "_counter"),
        ("concurrent.futures.thread", "ThreadPoolExecutor", "_counter"),
        ("multiprocessing.process", "", "_process_counter"),
    ):
        found = sys.modules.get(module)
        found = getattr(found, owner, None) if owner else found
        if (stock := getattr(found, name, None)) is not None:
            counter = itertools.count(0 if owner else 1)
            session.set(found, name, counter.__next__ if callable(stock) else counter)


def _patch_random(session: Session, module: Any, was_imported: bool) -> None:
    stock, urandom, generator = module.Random.seed, module._urandom, module._inst
    c_random = module._random.Random

    def new(cls, *args, **kwargs):
        return c_random.__new__(cls, 0)  # without a seed it draws one, which is not used

    @functools.wraps(stock)
    def seed(self, a=None, version=2):
        if a is None:
            drawn = session.draw("random.seed", SEED_BYTES, lambda: session.urandom(SEED_BYTES))
            a = int.from_bytes(drawn, "little")
        stock(self, a, version)

    def system(size: int) -> bytes:
        return session.draw("random.SystemRandom", size, lambda: urandom(size))

    session.set(module.Random, "__new__", staticmethod(new))
    session.set(module.Random, "seed", seed)
    session.set(module, "_urandom", system)
    session.set(module, "seed", generator.seed)
    if was_imported:
        form = struct.Struct("<I625I?d")

        def state() -> bytes:
            version, words, gauss = generator.getstate()
            return form.pack(version, *words, gauss is not None, gauss or 0.0)

        before = generator.getstate()
        session.on_stop(lambda: generator.setstate(before))
        version, *words, has_gauss, gauss = form.unpack(
            session.draw("the state of random", form.size, state)
        )
        generator.setstate((version, tuple(words), gauss if has_gauss else None))
    else:
        generator.seed()

    session.has_random = True
    _at_fork(after_in_child=session.after_random)


def _patch_numpy(session: Session, module: Any, was_imported: bool) -> None:
    stock = module.randbits

    def randbits(k: int) -> int:
        def fresh() -> bytes:
            return stock(k).to_bytes(size, "little")

        size = (k + 7) // 8
        return int.from_bytes(session.draw("numpy.random", size, fresh), "little")

    session.set(module, "randbits", randbits)


def _patch_numpy_state(session: Session, module: Any, was_imported: bool) -> None:
    generator = module._rand
    if not was_imported or generator.get_state(legacy=False)["bit_generator"] != "MT19937":
        return  # seeded by what _patch_numpy draws; or set by the program itself
    form = struct.Struct("<624IIid")

    def state() -> bytes:
        _, words, position, has_gauss, gauss = generator.get_state()
        return form.pack(*words.tolist(), position, has_gauss, gauss)

    before = generator.get_state()
    session.on_stop(lambda: generator.set_state(before))
    *words, position, has_gauss, gauss = form.unpack(
        session.draw("the state of numpy.random", form.size, state)
    )
    generator.set_state(("MT19937", words, position, has_gauss, gauss))


def _patch_uuid(session: Session, module: Any, was_imported: bool) -> None:
    for name in ("uuid1", "uuid4", "uuid6", "uuid7"):
        if stock := getattr(module, name, None):
            session.set(module, name, _drawn_uuid(session, module, stock))


def _drawn_uuid(session: Session, module: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """All 16 bytes of it: beside random ones there may be the time and the machine's address."""

    @functools.wraps(stock)
    def drawn(*args, **kwargs):
        def fresh() -> bytes:
            return stock(*args, **kwargs).bytes

        return module.UUID(bytes=session.draw(f"uuid.{stock.__name__}", 16, fresh))

    return drawn


def _patch_processes(session: Session, module: Any, was_imported: bool) -> None:
    stock = module.BaseProcess.start

    @functools.wraps(stock)
    def start(self):
        with session.naming(self.name):
            stock(self)

    session.set(module.BaseProcess, "start", start)


def _patch_subprocess(session: Session, module: Any, was_imported: bool) -> None:
    stock = module.Popen.__init__

    @functools.wraps(stock)
    def init(self, *args, **kwargs):
        with session.naming("subprocess") as name:
            environment = kwargs.get("env")
            if environment is not None and environment.get(FOLDER) == session.folder:
                kwargs["env"] = {**environment, PROCESS: name}
            stock(self, *args, **kwargs)

    session.set(module.Popen, "__init__", init)


# --- time -------------------------------------------------------------------------------


def _is_users_call() -> bool:
    """Whether what called the caller is a user's: libraries wait and log by the clock."""
    return not _is_library(sys._getframe(2).f_code.co_filename)


def _patch_time(session: Session) -> None:
    import time

    for name in CLOCKS:
        for clock, form in ((name, "<d"), (f"{name}_ns", "<q")):
            session.set(time, clock, _drawn_time(session, getattr(time, clock), form))
    localtime = time.localtime

    def at_a_time(stock: Callable[..., Any], before: int, is_local: bool) -> Callable[..., Any]:
        """A function whose argument number ``before`` is the time, now where it is not given."""
        now = _drawn_time(session, time.time.__wrapped__, "<d", is_users=True)

        @functools.wraps(stock)
        def function(*args):
            if _is_users_call() and len([x for x in args if x is not None]) == before:
                args = (*args[:before], localtime(now()) if is_local else now())
            return stock(*args)

        return function

    for name, before, is_local in (
        ("gmtime", 0, False),
        ("localtime", 0, False),
        ("ctime", 0, False),
        ("asctime", 0, True),
        ("strftime", 1, True),
    ):
        session.set(time, name, at_a_time(getattr(time, name), before, is_local))


def _drawn_time(
    session: Session, stock: Callable[[], Any], form: str, is_users: bool = False
) -> Callable[[], Any]:
    @functools.wraps(stock)
    def clock():
        if not is_users and not _is_users_call():
            return stock()
        data = session.draw(f"time.{stock.__name__}", 8, lambda: struct.pack(form, stock()))
        return struct.unpack(form, data)[0]

    return clock


def _patch_datetime(session: Session, module: Any, was_imported: bool) -> None:
    """``datetime.datetime``, whose methods in C cannot be replaced, becomes a subclass."""
    import copyreg

    stock = module.datetime

    class Type(type):
        def __instancecheck__(cls, x):
            return isinstance(x, stock)

        def __subclasscheck__(cls, x):
            return issubclass(x, stock)

    class datetime(stock, metaclass=Type):
        @classmethod
        def now(cls, tz=None):
            return cls._drawn(tz) if _is_users_call() else super().now(tz)

        @classmethod
        def utcnow(cls):
            if not _is_users_call():
                return super().utcnow()
            return cls._drawn(module.timezone.utc).replace(tzinfo=None)

        @classmethod
        def today(cls):
            return cls._drawn(None) if _is_users_call() else super().today()

        @classmethod
        def _drawn(cls, tz):
            def fresh() -> bytes:
                time = stock.now(module.timezone.utc) - epoch
                return struct.pack("<q", time // module.timedelta(microseconds=1))

            epoch = stock(1970, 1, 1, tzinfo=module.timezone.utc)
            data = session.draw("datetime.now", 8, fresh)
            time = epoch + module.timedelta(microseconds=struct.unpack("<q", data)[0])
            time = time.astimezone(tz)
            if tz is None:
                time = time.replace(tzinfo=None)
            return cls.combine(time.date(), time.timetz())

    datetime.__module__, datetime.__qualname__ = "datetime", "datetime"
    session.set(module, "datetime", datetime)
    # Objects of the type in C, which C functions make, are pickled as those of the subclass.
    before = copyreg.dispatch_table.get(stock)
    copyreg.pickle(stock, lambda x: (module.datetime, x.__reduce__()[1]))
    session.on_stop(
        lambda: (
            copyreg.dispatch_table.update({stock: before})
            if before
            else copyreg.dispatch_table.pop(stock)
        )
    )


_PATCHES = {
    "random": _patch_random,
    "numpy.random.bit_generator": _patch_numpy,
    "numpy.random.mtrand": _patch_numpy_state,
    "uuid": _patch_uuid,
    "multiprocessing.process": _patch_processes,
    "subprocess": _patch_subprocess,
    "datetime": _patch_datetime,
}
