import pytest

from support.crash_table import Plugin
from support.services import postgres, temporal

__all__ = ["anyio_backend", "postgres", "temporal"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(), "crash-table")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the long tier its time; every other test has the limit of pyproject.toml."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked anyio run on asyncio alone: the host does."""
    return "asyncio"
