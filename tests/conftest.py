import os

import pytest

from support.crash_table import Plugin
from support.services import postgres, temporal

__all__ = ["anyio_backend", "postgres", "temporal"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(), "crash-table")
    # What tests start they start hundreds of times: it is compiled once, whatever the machine likes.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the long tier its time; every other test has the limit of pyproject.toml."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for the whole suite, most of which waits or starts processes; none for a part."""
    option = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    chosen = option.keyword or option.markexpr != "not long" or option.lf
    return 2 if whole and not chosen and (os.cpu_count() or 1) > 1 else 0


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked anyio run on asyncio alone: the host does."""
    return "asyncio"
