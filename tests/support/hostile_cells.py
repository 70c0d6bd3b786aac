"""
Cells that try to hurt the runtime, as data: name, code, what must come of it.

`ename`: the cell ends with this error; "" means ok; None means either. The kernel answers `1+1`
afterwards, unless the row says `dies`: then the process ends and its guard reports how.
"""

from typing import NamedTuple


class Hostile(NamedTuple):
    name: str
    code: str
    ename: str | None = ""
    dies: int | None = None


EVERYWHERE = """
import os, sys, time
def replace(real, fake):
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if value is real: setattr(module, name, fake)
def broken(*a): raise OSError
"""
"""As tests do it that a cell runs: the clock and the file system are replaced in every module."""

BREAKING = {
    "time.sleep raises": EVERYWHERE + "replace(time.sleep, broken)",
    "time.monotonic stands still": EVERYWHERE + "replace(time.monotonic, lambda: 5.0)",
    "time.monotonic raises": EVERYWHERE + "replace(time.monotonic, broken)",
    "os.write does nothing": EVERYWHERE + "replace(os.write, lambda *a: 0)",
    "os.write raises": EVERYWHERE + "replace(os.write, broken)",
    "os.read finds nothing": EVERYWHERE + "replace(os.read, lambda *a: b'')",
    "threads cannot be started": "import threading\nthreading.Thread = threading.excepthook = None",
    "who is running is unknown": "import threading\nthreading.get_ident = lambda: 5",
    "no reader of the loop is left": "import asyncio\nloop = asyncio.get_running_loop()\n"
    "for fd in range(1200):\n try: loop.remove_reader(fd)\n except KeyError: pass",
}
"""What breaks the standard library for good, by name. Nothing of it may be felt by the runtime."""

LAMING = {
    "nothing can be imported": "import sys; sys.modules.clear(); sys.meta_path = None",
    "compile is gone": "import builtins; builtins.compile = builtins.eval = None",
    "no file can be opened": "import sys, os\nsys.addaudithook(lambda e, a: 1 / (e != 'open'))\nos.close(1)",
    "no source can be kept": "import linecache; linecache.cache = None",
}
"""What leaves the runtime without what it needs: each request is answered, if with an error."""

B = "class B(Exception):\n"
CELLS = [
    Hostile("sys.exit", "import sys; sys.exit(3)", "SystemExit"),
    Hostile("exit", "exit()", "SystemExit"),
    Hostile("quit in await", "import asyncio\nawait asyncio.sleep(0)\nquit(2)", "SystemExit"),
    Hostile("raise SystemExit subclass", "class X(SystemExit): pass\nraise X(1)", "X"),
    Hostile("GeneratorExit", "raise GeneratorExit", "GeneratorExit"),
    Hostile(
        "GeneratorExit in await",
        "await __import__('asyncio').sleep(0)\nraise GeneratorExit",
        "GeneratorExit",
    ),
    Hostile("KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Hostile("BaseException", "raise BaseException('x')", "BaseException"),
    Hostile("StopIteration", "raise StopIteration", "StopIteration"),
    Hostile(
        "StopIteration in await", "await __import__('asyncio').sleep(0)\nraise StopIteration", None
    ),
    Hostile("CancelledError", "raise __import__('asyncio').CancelledError", "CancelledError"),
    Hostile(
        "task exits",
        "import asyncio\nasync def f(): raise SystemExit(4)\nt = asyncio.create_task(f())\nawait asyncio.sleep(0.01)",
        "",
    ),
    Hostile(
        "task interrupts",
        "import asyncio\nasync def f(): raise KeyboardInterrupt\nt = asyncio.create_task(f())\nawait asyncio.sleep(0.01)",
        "",
    ),
    Hostile(
        "callback exits",
        "import asyncio, sys\nasyncio.get_running_loop().call_soon(sys.exit, 3)\nawait asyncio.sleep(0.01)",
        "",
    ),
    Hostile("loop.stop", "import asyncio; asyncio.get_running_loop().stop()", ""),
    Hostile(
        "loop.stop in await",
        "import asyncio\nasyncio.get_running_loop().stop()\nawait asyncio.sleep(0.01)",
        "",
    ),
    Hostile("loop.close", "import asyncio; asyncio.get_running_loop().close()", "RuntimeError"),
    Hostile(
        "asyncio.run",
        "import asyncio\nasync def f(): pass\nc = f()\ntry:\n    asyncio.run(c)\nfinally:\n    c.close()",
        "RuntimeError",
    ),
    Hostile("set_event_loop(None)", "import asyncio; asyncio.set_event_loop(None)", ""),
    Hostile("new policy", "import asyncio; asyncio.set_event_loop_policy(None)", None),
    Hostile(
        "cancel every task",
        "import asyncio\nfor t in asyncio.all_tasks(): t.cancel()\nawait asyncio.sleep(0)",
        "CancelledError",
    ),
    Hostile(
        "exception handler that raises",
        "import asyncio\ndef h(l, c): raise SystemExit\nasyncio.get_running_loop().set_exception_handler(h)\nasyncio.get_running_loop().call_soon(lambda: 1/0)\nawait asyncio.sleep(0.01)",
        "",
    ),
    Hostile("raising __str__", B + " def __str__(self): raise RuntimeError\nraise B()", "B"),
    Hostile("exiting __str__", B + " def __str__(self): raise SystemExit\nraise B()", "B"),
    Hostile("__str__ gives no str", B + " def __str__(self): return 5\nraise B()", "B"),
    Hostile(
        "__str__ gives a liar",
        "class S(str):\n def encode(self, *a): raise RuntimeError\n def __len__(self): raise RuntimeError\n"
        + B
        + " def __str__(self): return S('x')\nraise B()",
        "B",
    ),
    Hostile(
        "raising __repr__", "class R:\n def __repr__(self): raise ValueError\nR()", "ValueError"
    ),
    Hostile(
        "exiting __repr__", "class R:\n def __repr__(self): raise SystemExit\nR()", "SystemExit"
    ),
    Hostile("__repr__ gives no str", "class R:\n def __repr__(self): return 5\nR()", "TypeError"),
    Hostile(
        "__repr__ gives a liar",
        "class S(str):\n def __getitem__(self, i): raise RuntimeError\nclass R:\n def __repr__(self): return S('x')\nR()",
        "",
    ),
    Hostile(
        "metaclass lies about the name",
        "class M(type):\n @property\n def __name__(c): raise RuntimeError\nclass E(Exception, metaclass=M): pass\nraise E",
        "E",
    ),
    Hostile(
        "own __traceback__",
        "class E(Exception):\n __traceback__ = property(lambda s: 1/0)\nraise E",
        None,
    ),
    Hostile(
        "context cycle",
        "a = ValueError(); b = KeyError(); a.__cause__ = b; b.__cause__ = a\nraise a",
        "ValueError",
    ),
    Hostile("broken SyntaxError", "raise SyntaxError('x', ('f', 'no', [], object()))", None),
    Hostile(
        "exception group",
        "raise ExceptionGroup('g', [ValueError(i) for i in range(500)])",
        "ExceptionGroup",
    ),
    Hostile("huge exception text", "raise ValueError('x' * 50_000_000)", "ValueError"),
    Hostile("endless recursion", "def f(): return f()\nf()", "RecursionError"),
    Hostile(
        "recursion in repr",
        "class R:\n def __repr__(self): return repr(self)\nR()",
        "RecursionError",
    ),
    Hostile("recursion limit gone", "import sys\nsys.setrecursionlimit(60)\n1", None),
    Hostile("deep attribute source", "'a'" + ".b" * 100_000, None),
    Hostile("deep parentheses", "(" * 5_000 + ")" * 5_000, None),
    Hostile("deep unary source", "-" * 50_000 + "1", None),
    Hostile("source with a null", "x = '\0'", "SyntaxError"),
    Hostile("source of one long line", "x = [" + "1," * 200_000 + "]", ""),
    Hostile("syntax error", "def (", "SyntaxError"),
    Hostile("return at top level", "return 1", "SyntaxError"),
    Hostile("yield at top level", "yield 1", "SyntaxError"),
    Hostile("close stdout", "import sys; sys.stdout.close()", ""),
    Hostile("stdout is None", "import sys; sys.stdout = None; print('x')", ""),
    Hostile(
        "stdout raises",
        "import sys\nclass O:\n def write(self, s): raise OSError\nsys.stdout = O()\nprint('x')",
        "OSError",
    ),
    Hostile("stderr gone", "import sys; del sys.stderr; del sys.stdout", ""),
    Hostile("detach stdout", "import sys; sys.stdout.detach()", "UnsupportedOperation"),
    Hostile("close stdin", "import sys; sys.stdin.close()", ""),
    Hostile("detach stdin", "import sys; b = sys.stdin.detach()", ""),
    Hostile("detach the buffer of stdin", "import sys; r = sys.stdin.buffer.detach()", ""),
    Hostile(
        "print a liar",
        "class S(str):\n def __len__(self): raise RuntimeError\nimport sys\nsys.stdout.write(S('x'))",
        "",
    ),
    Hostile("lone surrogates", "print('\\ud800', '\\ud83c\\udf78'); '\\udfff'", ""),
    Hostile("close 0, 1 and 2", "import os\nfor i in range(3): os.close(i)", ""),
    Hostile(
        "files in place of 1 and 2",
        "import os\nos.close(1); os.close(2); a = open('/dev/null', 'w'); b = open('/dev/null', 'w'); print('seen')",
        "",
    ),
    Hostile("closerange", "import os; os.closerange(3, 1_000_000)", ""),
    Hostile(
        "close every number",
        "import os\nfor i in range(3, 2000):\n    try: os.close(i)\n    except OSError: pass",
        "",
    ),
    Hostile("del __builtins__", "del __builtins__", ""),
    Hostile("rebind __builtins__", "__builtins__ = {}\nlen('x')", None),
    Hostile(
        "delete builtins",
        "import builtins\nd = delattr\nfor n in list(vars(builtins)): d(builtins, n)",
        "",
    ),
    Hostile("clear globals", "globals().clear()", ""),
    Hostile("key that is no string", "globals()[1] = 2", ""),
    Hostile(
        "sys.modules cleared",
        "import sys\nsaved = dict(sys.modules)\nsys.modules.clear()\nsys.modules.update(saved)",
        "",
    ),
    Hostile(
        "our modules dropped",
        "import sys\nfor n in [n for n in sys.modules if n.startswith('rlm')]: del sys.modules[n]",
        "",
    ),
    Hostile("ignore SIGINT", "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)", None),
    Hostile(
        "block SIGINT",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])",
        None,
    ),
    Hostile("SIGINT to itself", "import os, signal; os.kill(os.getpid(), signal.SIGINT)", ""),
    Hostile(
        "fork and raise",
        "import os\npid = os.fork()\nif pid == 0: raise ValueError\nos.waitpid(pid, 0)[1]",
        "",
    ),
    Hostile("fork and fall off", "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)", ""),
    Hostile(
        "fork and print",
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: print('child')",
        "",
    ),
    Hostile(
        "fork in await",
        "import os, asyncio\npid = os.fork()\nawait asyncio.sleep(0)\nif pid: os.waitpid(pid, 0)",
        "",
    ),
    Hostile(
        "fork in a thread",
        "import os, threading\ndef f():\n    if os.fork() == 0: os._exit(0)\n    os.wait()\nt = threading.Thread(target=f); t.start(); t.join()",
        "",
    ),
    Hostile(
        "multiprocessing",
        "import multiprocessing as m\np = m.get_context('fork').Process(target=print, args=('x',)); p.start(); p.join(); p.exitcode",
        "",
    ),
    Hostile(
        "daemon thread prints on",
        "import threading, time\nstop = []\ndef f():\n    while not stop: print('.', end=''); time.sleep(0.001)\nt = threading.Thread(target=f, daemon=True); t.start()",
        "",
    ),
    Hostile("stop that thread", "globals().get('stop', []).append(1)", ""),
    Hostile("input", "input()", "EOFError"),
    Hostile(
        "child reads stdin", "import subprocess; subprocess.run(['cat'], timeout=20).returncode", ""
    ),
    Hostile(
        "GIL-held C write",
        "import ctypes; c = ctypes.PyDLL(None); c.printf(b'1' * 300_000); c.fflush(None)",
        "",
    ),
    Hostile("settrace", "import sys\nsys.settrace(lambda *a: 1/0)\nsys.settrace(None)", None),
    Hostile("profile left on", "import sys\nsys.setprofile(lambda *a: None)", ""),
    Hostile("switch interval", "import sys; sys.setswitchinterval(10)", ""),
    Hostile(
        "gc off and cycles",
        "import gc; gc.disable()\nfor _ in range(1000):\n    a = []; a.append(a)",
        "",
    ),
    Hostile(
        "printing finaliser",
        "class D:\n def __del__(self): print('deleted' * 20_000)\nfor _ in range(50): d = D(); d.me = d\nimport gc; gc.collect()",
        "",
    ),
    Hostile(
        "raising finaliser", "class D:\n def __del__(self): raise SystemExit\nd = D(); del d", ""
    ),
    Hostile(
        "unraisable hook",
        "import sys\nsys.unraisablehook = lambda *a: 1/0\nsys.excepthook = None",
        "",
    ),
    Hostile(
        "audit hook that raises",
        "import sys\nsys.addaudithook(lambda e, a: 1/0 if e == 'rlm.test' else None)\nsys.audit('rlm.test')",
        "ZeroDivisionError",
    ),
    Hostile("MemoryError", "x = 'x' * (1 << 62)", None),
    Hostile("emit NaN", "from rlm.repl import emit; emit({'a/b': float('nan')})", "ValueError"),
    Hostile(
        "emit a cycle",
        "from rlm.repl import emit; x = []; x.append(x); emit({'a/b': x})",
        "ValueError",
    ),
    Hostile(
        "emit too much", "from rlm.repl import emit; emit({'a/b': 'x' * 2_000_000})", "ValueError"
    ),
    Hostile(
        "import ourselves again", "import rlm.repl, rlm\n(rlm.repl.is_active(), callable(rlm))", ""
    ),
    Hostile(
        "chdir to nowhere",
        "import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
        "",
    ),
    Hostile("leave nowhere", "import os; os.chdir('/')", ""),
    Hostile(
        "rlimit on files",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
        "",
    ),
    Hostile(
        "rlimit back",
        "import resource; h = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE, (min(h, 4096), h))",
        "",
    ),
    Hostile("os._exit(0)", "import os; os._exit(0)", None, 0),
    Hostile("os._exit(7)", "import os; os._exit(7)", None, 7),
    Hostile("kill -9 itself", "import os; os.kill(os.getpid(), 9)", None, -9),
    Hostile("abort", "import os; os.abort()", None, -6),
    Hostile("segfault", "import ctypes; ctypes.string_at(0)", None, -11),
    Hostile("execv", "import os; os.execv('/bin/true', ['true'])", None, 0),
]
