"""What a cell can see of the process that it runs in: one JSON object, the same cell cold and warm."""

CELL = r"""
import builtins, errno, faulthandler, gc, io, json, locale, logging, os, random, resource, secrets
import select, signal, site, stat, subprocess, sys, tempfile, threading, time, uuid, warnings
MODULES = sorted(sys.modules)
SPAWN = os.environ.pop("RLM_SPAWN")  # the one variable that is another in every start

def read(path):
    with open(path) as file:
        return file.read()

def kinds():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            about = os.fstat(int(name))
        except OSError:
            continue
        found[int(name)] = (stat.S_IFMT(about.st_mode), os.get_inheritable(int(name)))
    return found

def status(*names):
    rows = dict(row.split(":", 1) for row in read("/proc/self/status").splitlines())
    return {name: rows[name].strip() for name in names}

def own(pid):
    return "self" if pid == os.getpid() else "parent" if pid == os.getppid() else "other"

def child(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

parent = dict(r.split(":", 1) for r in read(f"/proc/{os.getppid()}/status").splitlines())
fds = kinds()
names = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "executable": sys.executable, "prefix": sys.prefix, "base_prefix": sys.base_prefix,
    "xoptions": sys._xoptions, "warnoptions": sys.warnoptions,
    "filters": [str(f) for f in warnings.filters],
    "modules": MODULES, "meta_path": [type(f).__name__ for f in sys.meta_path] ,
    "path_hooks": len(sys.path_hooks), "dont_write_bytecode": sys.dont_write_bytecode,
    "pycache_prefix": sys.pycache_prefix, "safe_path": sys.flags.safe_path,
    "recursion": sys.getrecursionlimit(), "switch": sys.getswitchinterval(),
    "int_digits": sys.get_int_max_str_digits(), "tracing": str(sys.gettrace()),
    "excepthook": sys.excepthook is sys.__excepthook__,
    "displayhook": sys.displayhook is sys.__displayhook__,
    "main": sorted(n for n in vars(sys.modules["__main__"]) if n.startswith("__")),
    "main_name": __name__, "main_file": "__file__" in globals(),
    "repl": sys.modules["rlm.repl"] is not sys.modules["__main__"],
    "builtins": sorted(vars(builtins)), "profile": str(sys.getprofile()),
    "environment": dict(os.environ), "environment_order": list(os.environ),
    "in_c": child("import os; print(dict(os.environ) | {'_': 0})"),
    "cwd": os.getcwd(), "cwd_link": os.readlink("/proc/self/cwd"),
    "umask": status("Umask"), "limits": {
        n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")
    },
    "fds": [sorted(fd for fd in fds if fd < 900), sorted((fds[fd] for fd in fds if fd < 900))],
    "private_fds": [len([fd for fd in fds if fd >= 900]), any(v[1] for k, v in fds.items() if k >= 900)],
    "stdin": (os.readlink("/proc/self/fd/0"), sys.stdin.encoding, sys.stdin.read()),
    "stdio": [(s.encoding, s.errors, s.isatty(), s.fileno(), type(s).__name__) for s in (sys.stdout, sys.stderr)],
    "locale": [locale.setlocale(n) for n in (locale.LC_ALL, locale.LC_CTYPE, locale.LC_NUMERIC)],
    "encoding": [locale.getpreferredencoding(False), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
    "timezone": [time.tzname, time.timezone, time.daylight],
    "hash_seed": os.environ.get("PYTHONHASHSEED"), "hash_randomization": sys.flags.hash_randomization,
    "threads": [len(os.listdir("/proc/self/task")), sorted(t.name for t in threading.enumerate())],
    "main_thread": [threading.main_thread() is threading.current_thread(),
                    threading.get_native_id() == os.getpid() == threading.main_thread().native_id],
    "signals": {s.name: str(signal.getsignal(s)).split(" at ")[0].split(" of ")[0] for s in signal.Signals},
    "masks": status("SigBlk", "SigIgn", "SigCgt", "SigPnd"),
    "wakeup": signal.set_wakeup_fd(-1), "itimer": signal.getitimer(signal.ITIMER_REAL),
    "oom": read("/proc/self/oom_score_adj"), "capabilities": status("CapEff", "CapPrm", "CapBnd", "CapInh"),
    "privileges": status("NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups"),
    "session": own(os.getsid(0)), "group": own(os.getpgrp()), "terminal": os.isatty(0),
    "parent_group": [own(os.getsid(os.getppid())), own(os.getpgid(os.getppid()))],
    "parent_ignores": parent["SigIgn"], "guard_oom": read(f"/proc/{os.getppid()}/oom_score_adj"),
    "nice": os.nice(0), "affinity": sorted(os.sched_getaffinity(0)), "scheduler": os.sched_getscheduler(0),
    "dumpable": os.stat("/proc/self/fd").st_uid == os.getuid(),
    "personality": read("/proc/self/personality"), "coredump": read("/proc/self/coredump_filter"),
    "cgroup": read("/proc/self/cgroup"), "timerslack": read("/proc/self/timerslack_ns"),
    "cmdline": read("/proc/self/cmdline"), "comm": read("/proc/self/comm"), "exe": os.readlink("/proc/self/exe"),
    "root": os.readlink("/proc/self/root"), "namespaces": sorted(os.readlink(f"/proc/self/ns/{n}") for n in os.listdir("/proc/self/ns")),
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
    "tempdir": tempfile.gettempdir(), "tempfile": tempfile.tempdir, "user_site": site.ENABLE_USER_SITE,
    "cpu_used_little": time.process_time() < 5, "log_root": [str(logging.getLogger()), len(logging.getLogger().handlers)],
    "fault_handler": faulthandler.is_enabled(), "children": subprocess._active, "mp_children": sys.modules.get("multiprocessing") is None,
    "audit_works": callable(sys.addaudithook), "interactive": hasattr(sys, "ps1"), "platlib": sys.platlibdir,
    "atexit": __import__("atexit")._ncallbacks(), "getcontext": [v.name for v in __import__("contextvars").copy_context()],
    "rlm": [sys.modules["rlm"].__file__, type(sys.modules["rlm"]).__name__], "parent_is_guard": parent["Name"].strip(),
    "pid_in_proc": os.readlink("/proc/self") == str(os.getpid()), "ppid_thread": own(os.getpid()),
    "hash": hash("a"), "environ_at_start": len(read("/proc/self/environ")), "frozen": gc.get_freeze_count() > 0,
    "loadavg": os.path.exists("/proc/loadavg"), "float": repr(0.1), "maxsize": sys.maxsize,
}
print(json.dumps(names, default=str))
"""

SECRETS = r"""
import json, os, random, secrets, tempfile, uuid
found = {
    "random": random.random(), "state": hash(random.getstate()), "secrets": secrets.token_hex(8),
    "system": random.SystemRandom().random(), "uuid4": str(uuid.uuid4()), "uuid1": str(uuid.uuid1()),
    "temporary": next(tempfile._get_candidate_names()), "urandom": os.urandom(8).hex(),
    "mktemp": os.path.basename(tempfile.mktemp()), "pid": os.getpid(), "shuffle": random.sample(range(10**6), 3),
}
try:
    import numpy
    found["numpy"] = numpy.random.random()
    found["numpy_rng"] = numpy.random.default_rng().random()
except ImportError:
    pass
print(json.dumps(found))
"""
