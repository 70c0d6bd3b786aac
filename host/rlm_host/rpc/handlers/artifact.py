"""artifact/read."""

from rlm_protocol.host import ArtifactReadParams, ArtifactReadResult

from ..context import Context, Handlers


async def read(context: Context, params: ArtifactReadParams) -> ArtifactReadResult:
    """artifact/read."""
    actor = await context.services.sessions.get(params.session_id)
    return await actor.read_artifact(params.id, params.offset, params.limit)


HANDLERS: Handlers = {"artifact/read": read}
