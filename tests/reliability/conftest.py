from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is not of the long tier here is of the short one: `-m short`, `-m long`."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.short)
