"""What cells leave behind when their kernel is killed, one kind of each."""

GONE_S = 10.0
"""Generous for a loaded machine; the time is printed."""

SLEEP = "['sleep', '3600.TAG']"
SHAPES = {
    "idle": "1",
    "busy": "GO\nwhile True: pass",
    "GIL-holding C": "GO\nsum(range(10**13))",
    "asleep": "GO\nimport time; time.sleep(3600)",
    "await": "GO\nimport asyncio; await asyncio.sleep(3600)",
    "threads": "import threading\nfor _ in range(5): threading.Thread(target=threading.Event().wait).start()\nGO",
    "child": f"import subprocess; subprocess.Popen({SLEEP})\nGO",
    "bash": "import rlm; h = rlm.bash('sleep 3600.TAG & sleep 3600.TAG')\nGO",
    "nohup": "import rlm; h = rlm.bash('nohup sleep 3600.TAG > /dev/null 2>&1 & disown')\nGO",
    "setsid": f"import subprocess; subprocess.Popen({SLEEP}, start_new_session=True)\nGO",
    "double fork": f"import os\nif os.fork() == 0:\n if os.fork() == 0:\n  os.setsid(); os.execvp('sleep', {SLEEP})\n os._exit(0)\nos.wait()\nGO",
    "daemon with closed fds": f"import os\nif os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n os.closerange(0, 65536)\n os.execvp('sleep', {SLEEP})\nos.wait()\nGO",
    "multiprocessing": "import multiprocessing as m, time\nfor _ in range(3): m.get_context('fork').Process(target=time.sleep, args=(3600,)).start()\nGO",
    "spawn pool": "import concurrent.futures as cf, multiprocessing as m\np = cf.ProcessPoolExecutor(2, m.get_context('spawn')); list(p.map(abs, [1, 2]))\nGO",
    "emptied environment": f"import subprocess; subprocess.Popen({SLEEP}, env={{}}, start_new_session=True)\nGO",
    "ignores SIGTERM": "import subprocess; subprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP INT; sleep 3600.TAG; sleep 3600.TAG'])\nGO",
    "stopped": f"import subprocess, os, signal; p = subprocess.Popen({SLEEP}); os.kill(p.pid, signal.SIGSTOP)\nGO",
    "own children go on forking": "import subprocess; subprocess.Popen(['sh', '-c', 'while :; do (sleep 0.01; : TAG) & sleep 0.005; done'])\nGO",
}  # fmt: skip


def prepare(code: str, tag: str) -> str:
    # A raw write is shown by the guard even while the cell keeps the GIL.
    return code.replace("TAG", str(int(tag[:8], 16))).replace(
        "GO", "import os; _ = os.write(1, b'go')"
    )
