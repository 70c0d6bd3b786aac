import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked anyio run on asyncio alone: the host does."""
    return "asyncio"
