from collections.abc import Iterator

import pytest

from support.kit_runs import Runs, runs


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """What the conformance kits find. The jobs of all tests that were chosen begin with the first."""
    calls = [getattr(i, "callspec", None) for i in request.session.items if i.path == request.path]
    with runs([call.params["job"] for call in calls if call and "job" in call.params]) as found:
        yield found
