"""Submitted values against their contracts, without the host waiting for them."""

from typing import Any

from rlm_protocol.child import ResultContract

from ..processes.spawn import Processes
from ..sessions.checking import Checker
from .contract import result_invalid


class Validation:
    """Checks values. `processes` owns the processes of slow schemas."""

    def __init__(self, processes: Processes) -> None:
        self._checker = Checker(processes)

    async def check(self, contract: ResultContract, value: Any) -> None:
        """
        Hold a JSON value to a contract's schema.

        Raises:
            ResultInvalid: it does not fit, or could not be checked in five seconds.
        """
        if contract.schema is not None:
            found = await self._checker.mismatch(contract.schema, value)
            if found is not None:
                raise result_invalid(found)
