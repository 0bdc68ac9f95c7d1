# pyright: basic, reportMissingImports=false
"""A verifiers harness inside this process: requests a reply and runs its tool calls until there are none."""

from __future__ import annotations

import contextlib
import json
import types
from typing import Any

REPLIES = "genenv_replies"
"""The name of the module by which verifiers imports the harness."""


def said(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def harness_module() -> types.ModuleType:
    """Return a module with the harness, for verifiers to import; verifiers must be importable."""
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.utils.mcp import connect_mcp

    class RepliesConfig(vf.HarnessConfig):
        """The harness has no settings."""

    class RepliesHarness(vf.Harness[RepliesConfig]):
        """Requests replies from the model endpoint and runs their tool calls."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> Any:  # noqa: ANN001, ANN401, PLR0913
            """Run the conversation until a reply has no tool calls."""
            del trace, runtime
            system, prompt = self.resolve_prompt(data)
            messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(one) for one in prompt or ()]
            config = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
            async with contextlib.AsyncExitStack() as stack:
                tools, where, servers = await connect_mcp(config, stack)
                offered: dict[str, Any] = {"tools": tools} if tools else {}
                client = await stack.enter_async_context(
                    AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
                )
                while True:
                    answer = await client.chat.completions.create(
                        model=ctx.model, messages=messages, **offered
                    )
                    said = answer.choices[0].message.model_dump(exclude_none=True)
                    messages.append(said)
                    if not said.get("tool_calls"):
                        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                    for call in said["tool_calls"]:
                        found = await _called(call["function"], where, servers)
                        messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})

    module = types.ModuleType(REPLIES)
    for made in (RepliesConfig, RepliesHarness):
        made.__module__ = REPLIES
    module.RepliesHarness = RepliesHarness  # type: ignore[attr-defined]
    module.__all__ = ["RepliesHarness"]  # type: ignore[attr-defined]
    module.__spec__ = None
    return module


async def _called(call: Any, where: Any, servers: Any) -> Any:  # noqa: ANN401 - of verifiers
    """Return the result of a tool call, or an error sentence."""
    from verifiers.v1.harnesses.utils.mcp import call_mcp

    if call["name"] not in where:
        return f"Error: there is no tool {call['name']!r}."
    try:
        return await call_mcp(servers, where, call["name"], json.loads(call["arguments"] or "{}"))
    except Exception as error:  # noqa: BLE001 - a tool may raise anything
        return f"Error: {said(error)}"
