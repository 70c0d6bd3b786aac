import pytest

from support.crash_table import Plugin
from support.services import postgres, temporal

__all__ = ["anyio_backend", "postgres", "temporal"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(), "crash-table")


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked anyio run on asyncio alone: the host does."""
    return "asyncio"
