"""Every limit that two sides must agree on, with its unit and its reason."""

KIB = 1024
MIB = 1024 * KIB

# --- host <-> runtime -----------------------------------------------------------------------------
KERNEL_PROTOCOL = 3
"""The published protocol number that `ready` announces (`RLM_REPL_PROTOCOL=1` announces 1)."""
KERNEL_REQUEST_BYTES = 32 * MIB
"""A request line may be this long: a client's file pasted into a cell must pass."""
KERNEL_FRAME_BYTES = 1 * MIB
"""No event is longer: a reader's buffer stays small whatever a cell does."""
OUTPUT_EVENT_BYTES = 64 * KIB
"""Text of one stdout or stderr event: the size at which codec and pipe cost balance."""
OUTPUT_INTERVAL_MS = 10
"""Output is shipped at least this often while a cell runs."""
RESULT_REPR_CHARS = 256 * KIB
"""A result's repr is cut here; `length` then tells the true number of characters."""
CELLS_REMEMBERED = 1000
"""Sources of the last cells that linecache keeps for tracebacks."""
KERNEL_MEMORY_MIN_BYTES = 128 * MIB
"""Smallest memory limit of a kernel: the runtime, its libraries, a reserve for its answers."""
CELLS_QUEUED = 100
"""Cells that may wait for one kernel before `kernelBusy`."""
SNAPSHOT_BYTES = 256 * MIB
SNAPSHOT_NAME_BYTES = 16 * MIB
INSPECT_MS = 300
"""An editor waits this long for a completion or a hover."""
BASH_HEAD_BYTES = 512 * KIB
BASH_TAIL_BYTES = 1536 * KIB
STDERR_TAIL_BYTES = 8 * KIB

# --- client <-> host ------------------------------------------------------------------------------
CLIENT_HEADER_BYTES = 8 * KIB
CLIENT_MESSAGE_BYTES = 64 * MIB
CLIENT_IN_FLIGHT = 1024
ATTACHMENT_SOFT_BYTES = 8 * MIB
"""Unsent bytes of one attachment; above half of it deltas are coalesced, above it dropped."""
ATTACHMENT_HARD_BYTES = 16 * MIB
"""Unsent undroppable bytes above which the attachment is closed as `slow`."""
OUTPUT_INLINE_BYTES = 256 * KIB
"""Longer output of one cell is spilled to an artifact."""
PAGE_ITEMS = 200

# --- sessions and children ------------------------------------------------------------------------
ID_PATTERN = r"^(?!\.+$)[A-Za-z0-9._-]{1,64}$"
NAME_CHARS = 64
MAX_DEPTH_DEFAULT = 2
CHILDREN_LIVING = 1000
"""Living children of one session: a cell that spawns in an endless loop is stopped here."""
CONTRACT_SCHEMA_BYTES = 64 * KIB
RESULT_BYTES = 8 * MIB
TOOLS_MAX = 128
"""Tools of a client in one session: all of them are told to the model."""
TOOL_DESCRIPTION_CHARS = 4096
TOOL_RESULT_BYTES = 8 * MIB
"""Of a client's answer to `tool/call`; more belongs into a file."""
TOOL_CALL_MS = 10 * 60 * 1000
"""A client that has not answered a `tool/call` by then is told to stop."""
APPROVAL_MS = 10 * 60 * 1000
"""What no person has decided by then is denied, never granted."""
MESSAGE_CHARS = 16_384
MESSAGES_PENDING = 20
MESSAGE_BURST = 3
MESSAGE_PER_SECOND = 1.0
OBSERVE_LIMIT_MAX = 50
OBSERVE_CHARS_MIN = 80
OBSERVE_CHARS_MAX = 2_000
FIND_MODELS_MAX = 20
MODEL_RESULT_HEAD_CHARS = 12_000
MODEL_RESULT_TAIL_CHARS = 6_000
"""What a model sees of one cell's output; the rest is an artifact."""
