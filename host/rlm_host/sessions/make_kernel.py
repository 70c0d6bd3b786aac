"""How a session makes its kernel: by its recipe, for its folder, with what it offers to cells."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..kernels.bootstrap import bind_code
from ..kernels.recipe import Recipe
from .ports import Kernel, KernelFactory

if TYPE_CHECKING:
    from .session import SessionActor


def make_kernel(session: "SessionActor", kernels: KernelFactory, env: dict[str, str]) -> Kernel:
    """Give a session's kernel; nothing is started. `env` holds the values of its variables."""
    opened, recipe = session.state.opened, session.state.options.recipe

    async def answer(kind: str, payload: dict[str, Any], cell_id: str | None) -> object:
        return await session.ports.answer(session, kind, payload, cell_id)

    return kernels(
        recipe=Recipe(
            python=recipe.python if recipe else None,
            launcher=recipe.launcher or () if recipe else (),
            sandbox=recipe.sandbox if recipe else None,
            network=recipe.network if recipe else None,
            memory_bytes=recipe.memory_bytes if recipe else None,
            env=env,
        ),
        cwd=Path(opened.cwd),
        session_dir=session.artifacts_path,
        depth=opened.parent.depth if opened.parent else 0,
        max_depth=opened.max_depth,
        host_requests=answer,
        on_background=session.cells.on_background,
        on_status=session.cells.on_status,
        on_saved=session.cells.on_saved,
        persistent=not opened.ephemeral,
        bootstrap=lambda: bind_code(
            session.state.options.tools or (), session.skills.offered(Path(opened.cwd))
        ),
    )
