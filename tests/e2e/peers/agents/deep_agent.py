# Runs under an interpreter that has the SDK; acpd's own has not.
# mypy: disable-error-code="import-not-found,misc"
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""deepagents-acp with a model at MODEL_URL and its sessions in the SQLite file DEEP_STATE; it asks before it writes."""

from __future__ import annotations

import asyncio
import os

import acp
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents_acp.server import AgentServerACP, AgentSessionContext
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.state import CompiledStateGraph


async def main() -> None:
    """Serve stdin and stdout until they close."""
    model = ChatOpenAI(model="fake-model", base_url=os.environ["MODEL_URL"] + "/v1", api_key="x", max_retries=0)
    async with AsyncSqliteSaver.from_conn_string(os.environ["DEEP_STATE"]) as saver:

        def build(context: AgentSessionContext) -> CompiledStateGraph:
            backend = FilesystemBackend(root_dir=context.cwd, virtual_mode=False)
            asks = {"write_file": True, "edit_file": True}
            return create_deep_agent(model=model, backend=backend, interrupt_on=asks, checkpointer=saver)

        await acp.run_agent(AgentServerACP(agent=build, load_sessions=True))


if __name__ == "__main__":
    asyncio.run(main())
