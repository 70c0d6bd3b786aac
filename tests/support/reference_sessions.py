"""Sessions of the reference host: JSON lines on disk, scripted turns, a kernel each."""

import asyncio
import fcntl
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutant import broken
from reference_kernel import Kernel

from rlm_protocol import errors as e

MODELS = ("scripted/echo", "scripted/steps")
PIECE_CHARS = 16
GEN = 1
After = list[Callable[[], None]]


class Session:
    """One session that this process owns, by a lock on its file."""

    def __init__(self, store: "Sessions", id_: str, header: dict[str, Any]) -> None:
        self.store, self.id, self.header = store, id_, header
        self.path = store.folder / f"{id_}.jsonl"
        self.lock = os.open(store.folder / f"{id_}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self.lock, b"%-10d" % os.getpid(), 0)
        except OSError:
            owner = {"pid": int(os.pread(self.lock, 10, 0))}
            if not broken("lease-ignored"):
                raise e.SessionLeased(owner=owner) from None
        self.records: list[dict[str, Any]] = []
        self.seq = 1
        self.attached = True
        self.turn: str | None = None
        self.stopped: asyncio.Event = asyncio.Event()
        self.kernel: Kernel | None = None
        self.asks = False  # before a tool is called

    def view(self) -> dict[str, Any]:
        turns = sum(record["method"] == "turn/completed" for record in self.records)
        return {**self.header, "turns": turns, "activeTurnId": self.turn}

    # --- records and notifications ----------------------------------------------------------------

    def record(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Make a record durable; `tell` shows it."""
        self.seq += 1
        seq = self.seq % 4 if broken("seq-goes-back") else self.seq
        params = {**params, "sessionId": self.id, "seq": seq, "gen": GEN}
        record = {"method": method, "params": params}
        self.records.append(record)
        if not broken("memory-only"):
            with self.path.open("ab") as file:
                file.write(json.dumps(record).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        return record

    def tell(self, record: dict[str, Any]) -> None:
        if self.attached:
            self.store.host.notify(record["method"], record["params"])

    def live(self, method: str, params: dict[str, Any]) -> None:
        """Tell what is no record."""
        about = {"sessionId": self.id, "seq": self.seq, "gen": GEN}
        self.tell({"method": method, "params": {**params, **about}})

    def item(self, item: dict[str, Any]) -> None:
        self.tell(self.record("item/completed", {"item": item}))

    def items(self) -> list[dict[str, Any]]:
        return [r["params"]["item"] for r in self.records if r["method"] == "item/completed"]

    # --- turns ------------------------------------------------------------------------------------

    async def play(self, turn: str, text: str) -> None:
        """Answer as the script says: pieces of text, and waits that an interrupt ends."""
        item = {"type": "agentMessage", "id": f"item-{secrets.token_hex(4)}", "turnId": turn}
        self.live("item/started", {"item": {**item, "status": "inProgress", "text": ""}})
        steps = [{"text": f"[echo] {text}"}]
        if self.header["model"] == "scripted/steps":
            steps = json.loads(text)
        said = ""
        for step in steps:
            wait_s = step.get("wait_ms", 0) / 1000
            if not self.stopped.is_set() and wait_s:
                stop = asyncio.ensure_future(self.stopped.wait())
                await asyncio.wait({stop}, timeout=wait_s)
                stop.cancel()
            if self.stopped.is_set():
                break
            for at in range(0, len(step.get("text", "")), PIECE_CHARS):
                piece = step["text"][at : at + PIECE_CHARS]
                delta = {"itemId": item["id"], "channel": "text", "offset": len(said)}
                said += piece
                self.live(
                    "item/delta", {**delta, "text": said if broken("deltas-whole") else piece}
                )
        stopped = self.stopped.is_set() and not broken("interrupt-completes")
        status = "interrupted" if stopped else "completed"
        if broken("completed-early"):
            self.end_turn(turn, status)
        said = "" if broken("echo-silent") else said
        self.item({**item, "status": status, "text": said})
        if not broken("completed-early"):
            self.end_turn(turn, status)

    def end_turn(self, turn: str, status: str) -> None:
        usage = {"inputTokens": 1, "outputTokens": 1, "costNanoUsd": 0}
        self.turn = None
        self.tell(self.record("turn/completed", {"turnId": turn, "status": status, "usage": usage}))


class Sessions:
    """All sessions below one home, and the methods about them."""

    def __init__(self, host: Any, home: Path) -> None:
        self.host, self.home, self.folder = host, home, home / "sessions"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.open: dict[str, Session] = {}
        self.keys: dict[str, tuple[Any, Any]] = {}
        self.one_kernel: Kernel | None = None

    @property
    def kernels(self) -> int:
        return sum(session.kernel is not None for session in self.open.values())

    @property
    def busy(self) -> bool:
        return any(s.kernel is not None and s.kernel.running for s in self.open.values())

    def handlers(self) -> dict[str, Any]:
        return {
            "session/create": self.create,
            "session/read": self.read,
            "session/list": self.list,
            "session/items": self.items,
            "session/resume": self.resume,
            "session/detach": self.detach,
            "session/rename": self.rename,
            "session/archive": self.archive,
            "session/unarchive": self.unarchive,
            "session/delete": self.delete,
            "turn/start": self.turn_start,
            "turn/interrupt": self.turn_interrupt,
            "repl/execute": self.execute,
            "repl/interrupt": self.interrupt,
            "repl/names": self.names,
            "repl/restart": self.restart,
            "repl/complete": self.complete,
            "repl/inspect": self.inspect,
            "artifact/read": self.artifact,
        }

    def get(self, id_: str) -> Session:
        """Give a session, loading it from disk. Raises SessionNotFound, SessionLeased."""
        if id_ not in self.open:
            header = self.headers().get(id_)
            if header is None:
                raise e.RequestFailed if broken("unknown-is-failed") else e.SessionNotFound
            session = Session(self, id_, header)
            lines = session.path.read_bytes().splitlines() if session.path.exists() else []
            session.records = [json.loads(line) for line in lines]
            session.seq = max([1, *(r["params"]["seq"] for r in session.records)])
            self.open[id_] = session
        return self.open[id_]

    def headers(self) -> dict[str, dict[str, Any]]:
        found = [json.loads(path.read_bytes()) for path in self.folder.glob("*.json")]
        return {header["id"]: header for header in found}

    def save(self, session: Session) -> None:
        path = self.folder / f"{session.id}.json"
        if not broken("memory-only"):
            path.with_suffix(".new").write_text(json.dumps(session.header))
            path.with_suffix(".new").replace(path)

    def once(self, params: Any, result: Any) -> Any:
        """Give the result that this key had before; remember the first one."""
        key = params.idempotency_key
        if key is None or broken("keys-ignored"):
            return result()
        if key not in self.keys:
            self.keys[key] = (params, result())
        if self.keys[key][0] != params:
            raise e.Conflict(key=key)
        return self.keys[key][1]

    # --- sessions ---------------------------------------------------------------------------------

    async def create(self, params: Any, after: After) -> Any:
        def make() -> Any:
            model = params.model if params.model is not None else MODELS[0]
            if model not in MODELS and not broken("model-substituted"):
                raise e.ModelUnavailable(selector=model)
            id_ = f"ses-{secrets.token_hex(6)}"
            header = {
                "id": id_,
                "name": "unnamed" if broken("name-lost") else params.name or "unnamed",
                "cwd": params.cwd,
                "model": model if model in MODELS else MODELS[0],
                "status": "idle",
                "archived": False,
            }
            session = self.open[id_] = Session(self, id_, header)
            approvals = params.options.approvals if params.options else None
            session.asks = approvals is not None and approvals.tools == "ask"
            self.save(session)
            return {"session": session.view()}

        return self.once(params, make)

    async def read(self, params: Any, after: After) -> Any:
        return {"session": self.get(params.session_id).view()}

    async def list(self, params: Any, after: After) -> Any:
        headers = {**self.headers(), **{s.id: s.header for s in self.open.values()}}
        rows = [
            header
            for header in headers.values()
            if header["archived"] == params.archived or broken("archive-listed")
        ]
        return {"sessions": rows, "nextCursor": None}

    async def items(self, params: Any, after: After) -> Any:
        items = self.get(params.session_id).items()
        start = int(params.cursor or 0)
        end = start + params.limit
        step = end - 1 if broken("pages-overlap") and params.limit > 1 else end
        more = str(step) if end < len(items) else None
        return {"items": items[start:end], "nextCursor": more}

    async def resume(self, params: Any, after: After) -> Any:
        session = self.get(params.session_id)
        session.attached = True
        known = session.seq if params.cursor is None else params.cursor.seq
        known = 0 if broken("replay-all") else known
        missed = [r for r in session.records if r["params"]["seq"] > known]
        after.append(lambda: [session.tell(record) for record in missed] and None)
        cursor = {"gen": GEN, "seq": session.seq}
        return {"session": session.view(), "replay": "complete", "cursor": cursor}

    async def detach(self, params: Any, after: After) -> Any:
        self.get(params.session_id).attached = broken("detach-ignored")
        return {}

    def change(self, params: Any, **fields: Any) -> Any:
        session = self.get(params.session_id)
        session.header |= fields
        self.save(session)
        return {"session": session.view()}

    async def rename(self, params: Any, after: After) -> Any:
        return self.change(params, name=params.name)

    async def archive(self, params: Any, after: After) -> Any:
        return self.change(params, archived=True)

    async def unarchive(self, params: Any, after: After) -> Any:
        return self.change(params, archived=False)

    async def delete(self, params: Any, after: After) -> Any:
        session = self.get(params.session_id)
        if session.kernel is not None:
            session.kernel.close()
        os.close(session.lock)
        (self.folder / f"{session.id}.json").unlink()
        del self.open[session.id]
        return {}

    # --- turns ------------------------------------------------------------------------------------

    async def turn_start(self, params: Any, after: After) -> Any:
        session = self.get(params.session_id)

        def begin() -> Any:
            if session.turn is not None:
                raise e.TurnBusy
            turn = session.turn = f"turn-{secrets.token_hex(4)}"
            session.stopped.clear()
            text = "".join(part.text for part in params.input)
            item = {"type": "userMessage", "id": f"in-{turn}", "turnId": turn, "text": text}
            records = [
                session.record("turn/started", {"turnId": turn}),
                session.record("item/completed", {"item": item}),
            ]

            def go() -> None:
                for record in records:
                    session.tell(record)
                self.host.start(session.play(turn, text))

            after.append(go)
            return {"turnId": turn}

        return self.once(params, begin)

    async def turn_interrupt(self, params: Any, after: After) -> Any:
        session = self.get(params.session_id)
        if params.turn_id not in (None, session.turn):
            raise e.TurnMismatch
        session.stopped.set()
        return {"turnId": session.turn}

    # --- the kernel -------------------------------------------------------------------------------

    async def kernel(self, id_: str) -> Kernel:
        session = self.get(id_)
        if session.kernel is None or session.kernel.dead:
            shared = self.one_kernel if broken("one-kernel") else None
            session.kernel = self.one_kernel = shared or await Kernel.start(self.host, session)
            if broken("helper-left"):
                await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
        return session.kernel

    async def execute(self, params: Any, after: After) -> Any:
        return await (await self.kernel(params.session_id)).execute(params.code)

    async def interrupt(self, params: Any, after: After) -> Any:
        kernel = await self.kernel(params.session_id)
        busy = bool(kernel.running)
        kernel.interrupt()
        return {"interrupted": busy or broken("idle-interrupted")}

    async def names(self, params: Any, after: After) -> Any:
        done = await (await self.kernel(params.session_id)).ask("list_names")
        names = [name for name in done["names"] if name != "tools"]
        return {"names": names, "details": [], "truncated": False}

    async def restart(self, params: Any, after: After) -> Any:
        kernel = await self.kernel(params.session_id)
        if not broken("restart-keeps"):
            kernel.close()
            kernel.dead = True
        return {"restored": [], "failed": []}

    async def complete(self, params: Any, after: After) -> Any:
        kernel = await self.kernel(params.session_id)
        done = await kernel.ask("complete", code=params.code, cursor=params.cursor)
        matches = [] if broken("completes-nothing") else done["matches"]
        return {"matches": matches, "cursorStart": 0, "cursorEnd": params.cursor}

    async def inspect(self, params: Any, after: After) -> Any:
        kernel = await self.kernel(params.session_id)
        done = await kernel.ask("inspect", code=params.code, cursor=params.cursor)
        return {"found": done["found"], "text": done["text"]}

    async def artifact(self, params: Any, after: After) -> Any:
        data = (self.home / f"{self.get(params.session_id).id}-{params.id}").read_bytes()
        end = min(params.offset + params.limit, len(data))
        text = data[params.offset : end].decode()
        more = end if end < len(data) else None
        return {"sizeBytes": len(data), "offset": params.offset, "nextOffset": more, "text": text}
