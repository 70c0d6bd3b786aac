"""A peer that stands where a kernel stands: speaks just enough of the protocol, or breaks it on cue.

Cells are words: each line of code is `word argument…`. Standard library only, started as a script.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

NONCE = "n0"
stdin, stdout = 0, os.dup(1)


def send(**event: object) -> None:
    os.write(stdout, json.dumps(event).encode() + b"\n")


def done(id_: str, status: str = "ok", **more: object) -> None:
    send(event="done", id=id_, status=status, nonce=NONCE, **more)


class Interrupted(Exception):
    pass


class Fake:
    def __init__(self) -> None:
        self.buffer = b""
        self.waiting: list[dict] = []
        self.names: dict[str, str] = {}
        self.deaf = False

    def read(self, timeout: float | None) -> dict | None:
        while b"\n" not in self.buffer:
            if not select.select([stdin], [], [], timeout)[0]:
                return None
            data = os.read(stdin, 65536)
            if not data:
                os._exit(0)
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def hear(self, timeout: float | None, cell: str) -> dict | None:
        """Take the next message while a cell runs; interrupts of it raise."""
        message = self.read(timeout)
        if message is None:
            return None
        if message["type"] == "interrupt":
            if message.get("id") in (None, cell) and not self.deaf:
                raise Interrupted
        elif message["type"] == "host_reply":
            return message
        else:
            self.waiting.append(message)
        return None

    def run(self, id_: str, code: str) -> None:
        for line in code.splitlines():
            word, _, rest = line.strip().partition(" ")
            match word:
                case "print":
                    send(event="stdout", id=id_, text=rest)
                case "background":
                    send(event="stdout", id=None, text=rest)
                case "value":
                    send(event="result", id=id_, text=rest)
                case "raise":
                    raise RuntimeError(rest)
                case "set":
                    name, _, value = rest.partition(" ")
                    self.names[name] = value
                case "get":
                    send(event="result", id=id_, text=self.names[rest])
                case "wait":  # until interrupted
                    while True:
                        self.hear(None, id_)
                case "stubborn":
                    self.deaf = True
                    while True:
                        self.hear(None, id_)
                case "exit":
                    print("last words", file=sys.stderr, flush=True)
                    os._exit(int(rest))
                case "die":
                    print("last words", file=sys.stderr, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                case "garbage":
                    for _ in range(int(rest)):
                        os.write(stdout, b"\xff{]\n")
                case "half":
                    os.write(stdout, b'{"event":"done","id":')
                case "long":
                    os.write(stdout, b"x" * int(rest) + b"\n")
                case "forge":  # somebody else's done, and one of this cell under another nonce
                    send(event="done", id="nobody", status="ok", nonce=NONCE)
                    send(event="done", id=id_, status="ok", nonce="forged")
                    send(event="done", id=id_, status="ok")
                case "novel":
                    send(event="hologram", id=id_)
                case "again":
                    send(event="ready", protocol=3, python="3", runtime="dev", nonce="n1")
                case "ask":
                    type_, _, payload = rest.partition(" ")
                    send(
                        event="host_request",
                        id=f"h-{id_}",
                        data={"type": type_, "payload": json.loads(payload or "{}")},
                        cell=id_,
                    )
                    while (reply := self.hear(None, id_)) is None:
                        pass
                    send(event="result", id=id_, text=json.dumps(reply["data"]))
                case "flood":
                    for n in range(int(rest)):
                        send(event="host_request", id=f"f{n}", data={"type": "slow"}, cell=id_)
                case "cancel":
                    send(
                        event="host_request",
                        id=f"c-{rest}",
                        data={"type": "bridge.cancel", "payload": {"id": rest}},
                    )
                case "replies":
                    got = 0
                    while got < int(rest):
                        got += self.hear(None, id_) is not None
                    send(event="result", id=id_, text=str(got))
                case "spawn":
                    subprocess.Popen(rest.split(), start_new_session=True)
                case "sleep":
                    time.sleep(float(rest))
                case "from":
                    pass  # the bootstrap cell
                case _:
                    raise NameError(word)

    def execute(self, message: dict) -> None:
        id_ = message["id"]
        try:
            self.run(id_, message["code"])
        except Interrupted:
            send(event="error", id=id_, ename="KeyboardInterrupt", evalue="", traceback=[])
            done(id_, "error")
        except Exception as why:
            name = type(why).__name__
            send(event="error", id=id_, ename=name, evalue=str(why), traceback=[])
            done(id_, "error")
        else:
            done(id_)

    def serve(self) -> None:
        while True:
            message = self.waiting.pop(0) if self.waiting else self.read(None)
            assert message is not None
            id_ = message.get("id")
            match message["type"]:
                case "execute":
                    self.execute(message)
                case "snapshot":
                    with open(message["path"], "w") as file:
                        json.dump(self.names, file)
                    with open(message["manifest_path"], "w") as file:
                        json.dump({"version": 1}, file)
                    done(id_, saved=sorted(self.names), skipped=[], bytes=1)
                case "restore":
                    with open(message["path"]) as file:
                        names = json.load(file)
                    if "poison" in names:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if "sour" in names:
                        done(id_, "error", reason="sour")
                    else:
                        self.names.update(names)
                        done(id_, restored=sorted(self.names), failed=[])
                case "list_names":
                    done(id_, names=sorted(self.names))
                case "complete":
                    done(id_, matches=["abc"], cursor_start=0, cursor_end=2)
                case "inspect":
                    done(id_, found=True, text="a thing")
                case "shutdown":
                    os._exit(0)


def main() -> None:
    if "-c" in sys.argv:  # the host asks the interpreter that stands behind us what it is
        os.execv(sys.argv[1], sys.argv[1:])
    mode = os.environ.get("FAKE", "")
    if mode == "exit":
        print("cannot start today", file=sys.stderr, flush=True)
        os._exit(3)
    if mode == "mute":
        signal.pause()
    if mode == "chatter":
        while True:
            os.write(stdout, b"hello\n")
    protocol = 2 if mode == "old" else 3
    send(event="ready", protocol=protocol, python="3.11", runtime="dev", nonce=NONCE, features=[])
    Fake().serve()


if __name__ == "__main__":
    main()
