"""Python processes that need not import torch and mlflow again.

An import of torch takes a second of a core, one of mlflow another, and the tests start a thousand processes: trainers, couriers,
commands. `python()` is the path of an executable that behaves as `sys.executable` does, but the process is forked from one
that has the libraries in memory. Nothing of daypoint is: that each process imports anew. It is a process of its own all the same, with
its own arguments, environment, directory, descriptors, signals and exit code, and what it starts with its own `sys.executable` is warm too.

What cannot be had so starts as always: options and environment variables that Python or torch reads when it starts. Tests of
imports, of memory and of SIGKILL use `sys.executable`.

The executable sends its arguments and descriptors over a socket, passes signals on, and ends as the forked process does. If it is
killed, the process is killed. With WARM_GROUP in its environment, it passes signals on to the group of the process. The server ends with the tests' own process.
"""

import atexit
import builtins
import contextlib
import fcntl
import functools
import gc
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from pathlib import Path

FROZEN = ("PYTHON", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "CUDA", "LC_", "LANG", "LD_", "MALLOC_")
"""Beginnings of environment variables that are read once: by Python, torch or the C library, when they start."""
PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT")
TRAINING = (
    *(
        "torch",
        "torch._dynamo",
        "torch.utils.data",
        "torch.profiler._cupti_monitor",
        "sklearn.datasets",
        "pandas",
    ),
    *("hydra.main", "hydra._internal.hydra", "antlr4.LL1Analyzer", "orjson", "safetensors.torch", "sqlite3"),
    *("typer", "rich.console", "rich.table", "filelock"),
)
"""What a training imports, most of it late."""
TRACKING = (
    *(
        "mlflow.pyfunc",
        "mlflow.store.tracking.sqlalchemy_workspace_store",
        "mlflow.pytorch",
        "alembic.command",
    ),
    *("sqlalchemy.dialects.sqlite", "matplotlib.figure", "matplotlib.backends.backend_agg"),
    *(
        "torch.export.pt2_archive",
        "torch._functorch._aot_autograd.graph_compile",
        "torch._inductor.codecache",
    ),
)
"""What couriers and packagers import besides."""
HIGH = 400
"""Descriptors from here on are ours, while those of the new process are put in their places."""

CLIENT = """#!{real} -IS
import marshal, os, sys, _signal, _socket, struct
REAL, SOCKETS, FROZEN, PASSED_ON = {real!r}, {sockets!r}, {frozen!r}, {passed_on!r}
arguments = sys.argv[1:]
def cold():
    os.execv(REAL, [REAL, *arguments])
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
if {{k: v for k, v in os.environ.items() if k.startswith(FROZEN[0]) and k != "PYTHONPATH"}} != FROZEN[1]:
    cold()
rest = iter(arguments)
for word in rest:
    if word == "-W":
        next(rest, None)
    elif word not in ("-P", "-u"):
        break
else:
    cold()
if word.startswith("-") and word not in ("-c", "-m"):
    cold()
words = [word, *rest, ""]
imports_mlflow = {{
    "-m": words[1:3] in [["daypoint", c] for c in ("sync", "package", "promote", "ui")]
    or words[1] == "daypoint.tracking.courier" or any("mlflow" in word for word in words[1:3]),
    "-c": "mlflow" in words[1],
}}.get(words[0], False)
descriptors = []
for name in os.listdir("/proc/self/fd"):
    try:
        os.fstat(int(name))
    except OSError:
        continue
    if int(name) != server.fileno():
        descriptors.append(int(name))
ignored = [n for n in range(1, 32) if _signal.getsignal(n) == _signal.SIG_IGN]
try:
    server.connect(SOCKETS[imports_mlflow])
except OSError:
    cold()
umask = os.umask(0)
os.umask(umask)
group = os.environ.pop("WARM_GROUP", None) is not None
request = marshal.dumps([arguments, dict(os.environ), os.getcwd(), umask, descriptors, ignored, sys.argv[0]])
caught = []
child = 0
def pass_on(number, frame):
    if child:
        os.kill(-child if group else child, number)
    else:
        caught.append(number)
for name in PASSED_ON:
    if getattr(_signal, name) not in ignored:
        _signal.signal(getattr(_signal, name), pass_on)
packed = b"".join(struct.pack("i", n) for n in descriptors)
server.sendmsg([struct.pack("I", len(request))], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
server.sendall(request)
for number in descriptors:
    os.close(number)
child = struct.unpack("i", server.recv(4, _socket.MSG_WAITALL))[0]
for number in caught:
    pass_on(number, None)
(status,) = struct.unpack("i", server.recv(4, _socket.MSG_WAITALL))
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))
"""
COLD = sys.executable
"""The Python that starts as always, whatever a test puts into its place."""
SERVER = "import sys; sys.path[0] = sys.argv.pop(1); import warm; warm.main()"


@functools.cache
def python():
    """The path of the executable, beside which are `daypoint` and `mlflow`; the server is started at the first call, and is this process's own."""
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    sockets = [str(directory / "training.socket"), str(directory / "tracking.socket")]
    listening = []
    for path in sockets:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(128)
        listening.append(listener)
    numbers = [listener.fileno() for listener in listening]
    server = subprocess.Popen(
        [COLD, "-c", SERVER, str(Path(__file__).parent), *map(str, numbers)],
        stdin=subprocess.PIPE,
        pass_fds=numbers,
        start_new_session=True,
    )
    for listener in listening:
        listener.close()
    frozen = {
        key: value for key, value in os.environ.items() if key.startswith(FROZEN) and key != "PYTHONPATH"
    }
    path = directory / "python"
    path.write_text(CLIENT.format(real=COLD, sockets=sockets, frozen=(FROZEN, frozen), passed_on=PASSED_ON))
    path.chmod(0o755)
    for name in ("daypoint", "mlflow"):
        command = directory / name
        command.write_text(f'#!/bin/sh\nexec "{path}" -m {name} "$@"\n')
        command.chmod(0o755)
    owner = os.getpid()

    def stop():
        if os.getpid() == owner:
            server.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            shutil.rmtree(directory)

    atexit.register(stop)
    return str(path)


# ---------------------------------------------------------------- the server


class Server:
    """Forks a process for each request, until standard input is closed and the last process has ended."""

    def __init__(self, listener):
        self.listener = listener
        self.clients = {}  # the process of a connection
        self.selector = selectors.DefaultSelector()
        woken, waker = socket.socketpair()
        self.ours = [listener, woken, waker, self.selector]
        for end in (woken, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(woken, selectors.EVENT_READ, self.reap)
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.selector.register(0, selectors.EVENT_READ, self.finish)
        self.woken = woken
        self.is_over = False

    def serve(self):
        """In a forked process, what it is to run; None in the server, at its end."""
        while not self.is_over or self.clients:
            for key, _ in self.selector.select():
                job = key.data(key.fileobj)
                if job is not None:
                    return job
        return None

    def finish(self, _):
        self.is_over = True
        self.selector.unregister(0)

    def accept(self, listener):
        connection, _ = listener.accept()
        header, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(4 * 253), socket.MSG_WAITALL)
        received = [n for _, _, packed in ancillary for (n,) in struct.iter_unpack("i", packed)]
        if len(header) < 4:
            connection.close()
            return None
        (length,) = struct.unpack("I", header)
        request = connection.recv(length, socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for thing in (connection, *self.clients, *self.ours):
                thing.close()
            return received, marshal.loads(request)
        for number in received:
            os.close(number)
        self.clients[connection] = pid
        self.selector.register(connection, selectors.EVENT_READ, self.hung_up)
        with contextlib.suppress(OSError):
            connection.sendall(struct.pack("i", pid))
        return None

    def hung_up(self, connection):
        """Whoever asked for the process is gone, so it was killed."""
        pid = self.clients.get(connection)
        if pid is not None:
            self.selector.unregister(connection)
            os.kill(pid, signal.SIGKILL)

    def reap(self, woken):
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                for connection in [c for c, process in self.clients.items() if process == pid]:
                    del self.clients[connection]
                    with contextlib.suppress(KeyError):
                        self.selector.unregister(connection)
                    with contextlib.suppress(OSError):
                        connection.sendall(struct.pack("i", status))
                    connection.close()


def become(received, request, paths):
    """Make this forked process the one that was asked for; the arguments that say what to run."""
    arguments, environment, directory, umask, descriptors, ignored, executable = request
    os.setsid()
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD, HIGH) for number in received]
    os.closerange(0, HIGH)
    for number, target in zip(kept, descriptors, strict=True):
        os.dup2(number, target)
        os.close(number)
    os.chdir(directory)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    for number in map(signal.Signals, range(1, 32)):
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
    sys.executable = executable
    sys.orig_argv = [executable, *arguments]
    is_safe = is_unbuffered = False
    warned = []
    while arguments[0] in ("-P", "-u", "-W"):
        option = arguments.pop(0)
        is_safe |= option == "-P"
        is_unbuffered |= option == "-u"
        if option == "-W":
            warned.append(arguments.pop(0))
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, f"__{name}__")
        stream = open(  # noqa: SIM115
            number,
            mode,
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
            buffering=1 if number == 2 or is_unbuffered or os.isatty(number) else -1,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if warned:
        import warnings

        sys.warnoptions.extend(warned)
        warnings._processoptions(warned)
    if "multiprocessing.spawn" in sys.modules:
        sys.modules["multiprocessing.spawn"].set_executable(executable)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    more = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*more, *paths]
    if any(Path(path, "sitecustomize.py").exists() for path in more):
        import sitecustomize  # noqa: F401
    return arguments, is_safe


def run(arguments, is_safe):
    """What Python does with its arguments."""
    first, *rest = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if first == "-m":
        sys.argv = ["-m", *rest[1:]]
        if not is_safe:
            sys.path.insert(0, os.getcwd())
        return functools.partial(runpy._run_module_as_main, rest[0])
    if first == "-c":
        text, name, begins = rest[0], "<string>", ""
        sys.argv = ["-c", *rest[1:]]
    else:
        name, begins = first, os.path.dirname(os.path.realpath(first))
        sys.argv = list(arguments)
        main.__file__ = name
    if not is_safe:
        sys.path.insert(0, begins)
    if first != "-c":
        text = Path(first).read_bytes()
    return lambda: exec(compile(text, name, "exec"), main.__dict__)


def main():
    numbers = [int(number) for number in sys.argv[1:]]
    here = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = [path for path in sys.path if path not in here]
    torch_listener, mlflow_listener = (socket.socket(fileno=number) for number in numbers)
    import_all(*TRAINING)
    if os.fork() == 0:
        torch_listener.close()
        listener = mlflow_listener
        import_all(*TRACKING)
    else:
        mlflow_listener.close()
        listener = torch_listener
    gc.collect()
    gc.freeze()
    job = Server(listener).serve()
    if job is None:
        return
    received, request = job
    work = run(*become(received, request, paths))
    try:
        work()
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.stdout.flush()
        if isinstance(error, KeyboardInterrupt):
            atexit._run_exitfuncs()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


def import_all(*names):
    for name in names:
        __import__(name)
