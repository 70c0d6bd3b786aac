"""Our host whose `repl/execute` and `agent/spawn` give back what they are asked; all else is ours."""

import sys

import runtime_bench as b

sys.path.append(str(b.HERE.parent))

from rlm_host.faces import cli_stdio
from rlm_host.rpc.claim import claim_stdio
from rlm_host.rpc.context import Context, Handlers
from rlm_protocol.agent import AgentResultResult, AgentSpawnParams
from rlm_protocol.repl import ReplExecuteParams, ReplExecuteResult
from support import rpc_host


async def execute(context: Context, params: ReplExecuteParams) -> ReplExecuteResult:
    return ReplExecuteResult(cell_id="c", status="ok", result=params.code)


async def spawn(context: Context, params: AgentSpawnParams) -> AgentResultResult:
    return AgentResultResult(value=params.options, generation=1)


class App(rpc_host.App):
    def handlers(self) -> Handlers:
        return {**super().handlers(), "repl/execute": execute, "agent/spawn": spawn}


if __name__ == "__main__":
    sys.exit(cli_stdio.run(claim_stdio(), [], App()))
