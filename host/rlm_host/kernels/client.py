"""
One live kernel process: requests in, events out, by the table of `lifecycle.py`.

Never blocks on the pipe, never trusts a line: what is no event, carries another nonce or belongs to
no request is counted and dropped. The death of the process fails everything that waits, at once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rlm_protocol import kernel
from rlm_protocol.bridge import failed
from rlm_protocol.errors import KernelDied, KernelUnavailable, RlmError, TooLarge
from rlm_protocol.framing import LineReceiver, NeedData, Refused, encode_line
from rlm_protocol.limits import KERNEL_FRAME_BYTES, KERNEL_PROTOCOL, KERNEL_REQUEST_BYTES

from ..clock import Clock
from ..processes import facts
from ..processes.spawn import Child, Exit
from .bridge import Bridge
from .cell import HostRequests, OnEvent, OutputEvent
from .lifecycle import Action, Input, State, step

BAD_LINES = 100
"""So many lines that are no events, and the process is ended: it is not a runtime any more."""
log = logging.getLogger(__name__)

_ENDING = {State.STOPPING, State.TERMINATING, State.KILLING, State.EXITED}
Occupying = kernel.Execute | kernel.Snapshot | kernel.Restore
Question = kernel.ListNames | kernel.Complete | kernel.Inspect


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How a kernel process is started, all decided."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    memory_bytes: int | None = None
    """What its processes may hold together."""
    warm: bool = False
    """It may be forked from a template: nothing stands before the interpreter."""
    versions: frozenset[str]
    """What `ready.runtime` may say."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long each step of a kernel's life may take, in milliseconds."""

    ready_ms: int = 30_000
    interrupt_again_ms: int = 2_000
    interrupt_kill_ms: int = 5_000
    shutdown_ms: int = 2_000
    terminate_ms: int = 500


class Dropped(msgspec.Struct, kw_only=True):
    """Counts of what the process sent and nobody was waiting for."""

    bad_lines: int = 0
    wrong_nonce: int = 0
    strays: int = 0
    unknown_events: int = 0


class _Pending(msgspec.Struct):
    future: asyncio.Future[kernel.Done]
    on_event: OnEvent | None


class Kernel:
    """A process that is, or was, a kernel. Made by `open_kernel`."""

    def __init__(
        self,
        host_requests: HostRequests,
        on_background: Callable[[OutputEvent], None],
        on_state: Callable[[State], None],
        clock: Clock,
        waits: Waits,
    ) -> None:
        self.state = State.STARTING
        self.dropped = Dropped()
        self.ready: kernel.Ready | None = None
        self.exit: Exit | None = None
        self._said_exit: kernel.Exited | None = None
        """The guard's word from behind a launcher that may not pass it on."""
        self._oom_kills = facts.oom_kills()
        self.was_killed = False
        self._child: Child
        self._bridge = Bridge(host_requests, self._answer)
        self._on_background = on_background
        self._on_state = on_state
        self._clock = clock
        self._waits = waits
        self._receiver = LineReceiver(max_frame_bytes=KERNEL_FRAME_BYTES)
        self._pending: dict[str, _Pending] = {}
        self._active: Occupying | None = None
        self._timer: asyncio.Task[None] | None = None
        self._next_id = 0
        self._changed = asyncio.Event()

    # --- what the owner does with it --------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The kernel's own pid, as its guard says; None without a guard."""
        return self._child.guard.pid if self._child.guard is not None else None

    @property
    def ended(self) -> asyncio.Future[Exit]:
        """Done once the process is reaped; what was below it may be left."""
        return self._child.ended

    @property
    def left_nothing(self) -> bool:
        """Tell whether its guard has said that it has ended all that was below it."""
        return self._child.guard is not None and self._child.guard.exit_code is not None

    def new_id(self) -> str:
        """Give an id for a request of ours; no cell's id can be equal to it."""
        self._next_id += 1
        return f":{self._next_id}"

    async def run(self, request: Occupying, on_event: OnEvent | None = None) -> kernel.Done:
        """
        Send a request that has the namespace to itself; wait for its `done`. One at a time.

        Raises:
            KernelDied: the process ended first.
            TooLarge: the request's line is over the limit; nothing was sent.
        """
        self._check_alive()
        line = _line(request)
        self._active = request
        self._feed(Input.BEGIN)
        return await self._send_and_wait(request.id, line, on_event)

    async def ask(
        self, request: kernel.ListNames | kernel.Complete | kernel.Inspect
    ) -> kernel.Done:
        """Send a request that may be answered beside a running cell. Raises as `run`."""
        self._check_alive()
        return await self._send_and_wait(request.id, _line(request), None)

    def interrupt(self, request_id: str) -> None:
        """Interrupt the active request if it is this one; escalates by itself, up to SIGKILL."""
        if self._active is not None and self._active.id == request_id:
            self._feed(Input.INTERRUPT)

    @property
    def asks(self) -> bool:
        """Tell whether a request of the kernel's to the host is open."""
        return self._bridge.in_flight > 0

    def kill(self) -> None:
        """End the process tree at once."""
        if self.state is not State.EXITED:
            self._feed(Input.KILL)

    # --- the shell of the table -------------------------------------------------------------------

    def _feed(self, given: Input) -> None:
        self.state, actions = step(self.state, given)
        for action in actions:
            self._act(action)
        self._changed.set()
        self._on_state(self.state)

    def _act(self, action: Action) -> None:
        waits = self._waits
        match action:
            case Action.SEND_REQUEST:
                pass  # `run` has the line at hand
            case Action.SEND_INTERRUPT:
                self._send_interrupt()
            case Action.SEND_SHUTDOWN:
                self._child.stdin.write(_line(kernel.Shutdown()))
                self._child.stdin.close(flush=True)
            case Action.TERMINATE:
                self._child.terminate()
            case Action.KILL:
                self.was_killed = True
                self._set_timer(None)
                self._child.kill()
            case Action.START_AGAIN_TIMER:
                self._set_timer(waits.interrupt_again_ms)
            case Action.START_KILL_TIMER:
                self._set_timer(waits.interrupt_kill_ms)
            case Action.START_GRACE_TIMER:
                self._set_timer(waits.shutdown_ms)
            case Action.START_TERM_TIMER:
                self._set_timer(waits.terminate_ms)
            case Action.STOP_TIMER:
                self._set_timer(None)
            case Action.FAIL_PENDING:
                self._fail_pending()
            case Action.REPORT_VIOLATION:
                log.error("a kernel broke the protocol and is ended (%s)", self.dropped)

    def _set_timer(self, duration_ms: int | None) -> None:
        if self._timer is not None and self._timer is not asyncio.current_task():
            self._timer.cancel()
        self._timer = None
        if duration_ms is not None:
            self._timer = asyncio.create_task(self._ring(duration_ms))

    async def _ring(self, duration_ms: int) -> None:
        await self._clock.sleep(duration_ms)
        self._feed(Input.TIMER)

    def _send_interrupt(self) -> None:
        if self._active is not None:
            line = _line(kernel.Interrupt(id=self._active.id))
            # The doorbell only once the line lies there: without it a signal does nothing.
            self._child.stdin.write(line, on_taken=self._child.interrupt)

    # --- its beginning and its end ----------------------------------------------------------------

    def live(self, child: Child) -> None:
        """Take the process that it is from now on."""
        self._child = child
        child.ended.add_done_callback(self._has_ended)
        self._set_timer(self._waits.ready_ms)

    def _has_ended(self, ended: asyncio.Future[Exit]) -> None:
        self.exit = ended.result()
        if self._said_exit is not None and not self.left_nothing:
            self.exit = msgspec.structs.replace(
                self.exit,
                code=self._said_exit.code,
                out_of_memory=self._said_exit.reason == "oom",
            )
        self._feed(Input.EXIT)

    async def until_ready(self, launch: Launch) -> None:
        """Wait for `ready`. Raises KernelUnavailable, KernelDied, as `open_kernel` says."""
        while self.state is State.STARTING:
            self._changed.clear()
            await self._changed.wait()
        if self.state is State.KILLING:
            raise KernelUnavailable(
                "The kernel did not get ready in time, or is no kernel.",
                argv=list(launch.argv),
                waited_ms=self._waits.ready_ms,
                stderr_tail=self._child.stderr_tail,
            )
        if self.state is State.EXITED:
            raise self._death("The kernel ended before it was ready.")
        ready = self.ready
        if ready is None or ready.protocol != KERNEL_PROTOCOL or ready.nonce is None:
            raise self._unfit("It speaks another protocol.", launch)
        if ready.runtime not in launch.versions:
            raise self._unfit(
                "It is another version of the runtime than this host's; "
                "run `rlm-host kernel install`.",
                launch,
            )

    def _unfit(self, reason: str, launch: Launch) -> KernelUnavailable:
        ready = self.ready
        return KernelUnavailable(
            f"The interpreter starts a kernel that this host cannot use. {reason}",
            argv=list(launch.argv),
            protocol=ready.protocol if ready else None,
            runtime=ready.runtime if ready else None,
            expected=sorted(launch.versions),
        )

    async def stop(self) -> None:
        """Ask it to shut down, escalate, and let go of everything that waits for it."""
        if self.state is not State.EXITED:
            self._feed(Input.STOP)
        while self.state not in (State.KILLING, State.EXITED):
            self._changed.clear()
            await self._changed.wait()
        self._set_timer(None)
        await self._bridge.aclose()

    def _check_alive(self) -> None:
        if self.state in _ENDING:
            raise self._death()

    def _death(self, message: str | None = None) -> KernelDied:
        exit_ = self.exit
        return KernelDied(
            message,
            exit_code=exit_.code if exit_ is not None and exit_.code >= 0 else None,
            signal=exit_.signal_name if exit_ is not None else None,
            reason="oom" if exit_ is not None and self._out_of_memory(exit_) else None,
            stderr_tail=self._child.stderr_tail,
        )

    def _out_of_memory(self, exit_: Exit) -> bool:
        """
        Tell whether it ended for want of memory: by its guard, or by the system's OOM killer.

        Of the latter there is evidence, no proof: a SIGKILL that was not ours, while the system
        counted such a kill, and kernels are the first that it takes.
        """
        if exit_.out_of_memory or self.was_killed or exit_.signal_name != "SIGKILL":
            return exit_.out_of_memory
        return facts.oom_kills() > self._oom_kills

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        self._active = None
        self._bridge.cancel()
        for waiting in pending.values():
            if not waiting.future.done():
                waiting.future.set_exception(self._death())

    # --- lines ------------------------------------------------------------------------------------

    async def _send_and_wait(self, id_: str, line: bytes, on_event: OnEvent | None) -> kernel.Done:
        future: asyncio.Future[kernel.Done] = asyncio.get_running_loop().create_future()
        # A caller that gives up leaves its entry: the late `done` is then no stray.
        self._pending[id_] = _Pending(future, on_event)
        self._child.stdin.write(line)
        return await future

    def _answer(self, id_: str, envelope: dict[str, object]) -> None:
        if self.state in _ENDING:
            return
        try:
            line = _line(kernel.HostReply(id=id_, data=envelope))
        except RlmError as refusal:
            line = _line(kernel.HostReply(id=id_, data=failed(refusal)))
        self._child.stdin.write(line)

    def heard(self, data: bytes) -> None:
        """Take in the next bytes of the process's stdout."""
        self._receiver.receive_data(data)
        while (frame := self._receiver.next_frame()) is not None:
            if isinstance(frame, NeedData):
                return
            if isinstance(frame, Refused):
                self._bad_line(str(frame.error))
            elif frame:
                self._dispatch(kernel.decode_event(frame))

    def _dispatch(self, event: kernel.Event | kernel.UnknownEvent | kernel.BadLine) -> None:
        match event:
            case kernel.Done():
                self._done(event)
            case kernel.HostRequest():
                if not self._bridge.take(event):
                    self.dropped.strays += 1
            case kernel.Exited():
                self._said_exit = event
            case kernel.Ready():
                self.ready = self.ready or event
                self._feed(Input.READY)
            case kernel.BadLine():
                self._bad_line(event.reason)
            case kernel.UnknownEvent():
                self.dropped.unknown_events += 1
            case _:
                self._output(event)

    def _output(self, event: OutputEvent) -> None:
        waiting = self._pending.get(event.id) if event.id is not None else None
        if waiting is not None:
            if waiting.on_event is not None:
                _tell(waiting.on_event, event)
        elif isinstance(event, kernel.Result | kernel.Error):
            self.dropped.strays += 1
            log.warning("a kernel said %s to no request of ours", type(event).__name__)
        else:
            _tell(self._on_background, event)

    def _done(self, event: kernel.Done) -> None:
        if self.ready is None or event.nonce != self.ready.nonce:
            self.dropped.wrong_nonce += 1
            return
        waiting = self._pending.pop(event.id, None)
        if waiting is None:
            self.dropped.strays += 1
            return
        if self._active is not None and self._active.id == event.id:
            self._active = None
            self._feed(Input.DONE)
        if not waiting.future.done():
            waiting.future.set_result(event)

    def _bad_line(self, reason: str) -> None:
        self.dropped.bad_lines += 1
        if self.dropped.bad_lines == 1:
            log.warning("a kernel sent a line that is no event: %s", reason)
        if self.dropped.bad_lines == BAD_LINES and self.state is not State.EXITED:
            self._feed(Input.VIOLATION)


def _tell(listener: OnEvent, event: OutputEvent) -> None:
    try:
        listener(event)
    except Exception:
        # A listener's bug ends its own work, not the reading of everybody's kernel.
        log.exception("a listener failed on %s", type(event).__name__)


def _line(message: kernel.Request) -> bytes:
    line = encode_line(kernel.encode(message))
    if len(line) > KERNEL_REQUEST_BYTES:
        raise TooLarge(limit_bytes=KERNEL_REQUEST_BYTES, got_bytes=len(line))
    return line
