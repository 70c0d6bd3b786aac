import pytest

from support.services import postgres, temporal

__all__ = ["anyio_backend", "postgres", "temporal"]


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked anyio run on asyncio alone: the host does."""
    return "asyncio"
