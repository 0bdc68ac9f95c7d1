"""What a model is told when it is to write wordings, and when it is to say which tool one asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from genenv.tools.language.wording import ARGUMENTS
from genenv.tools.worlds.base import Tool

_LONGEST_SCHEMA = 4_000
_LONGEST_LINE = 200


def writing(tool: Tool, parameters: Sequence[str], examples: Sequence[str], number: int) -> str:
    """The request for wordings of a tool.

    Args:
        tool: which.
        parameters: that may have a blank, in order.
        examples: wordings that there are.
        number: how many are wanted.
    """
    properties = {name: tool.properties[name] for name in parameters}
    schema = {**tool.parameters, "properties": properties}
    told = {"name": tool.name, "description": tool.description, "parameters": schema}
    needed = [f"{{{name}}}" for name in parameters if name in tool.required]
    others = [f"{{{name}}}" for name in parameters if name not in tool.required]
    lines = [
        "Users ask an assistant for things. It has this tool:",
        json.dumps(told, ensure_ascii=False)[:_LONGEST_SCHEMA],
        "",
        f"Write {number} ways in which a user would ask for it, one a line, each in other words. A way is a "
        "short order that begins with a verb. Values are blanks in braces, which are filled in later.",
    ]
    if needed:
        lines.append(f"Each has these blanks, once: {' '.join(needed)}")
    if others:
        lines.append(f"It may also have: {' '.join(others)}")
    if parameters:
        lines.append(f"Or it ends with a colon and {{{ARGUMENTS}}}, which stands for all values together.")
    lines.append(
        "No values, no names of tools or parameters outside blanks, no quotation marks, nothing else."
    )
    if examples:
        lines += ["These are there already:", *examples]
    return "\n".join(lines)


def naming(request: str, tools: Sequence[Tool]) -> str:
    """The question which tool a request asks for.

    Args:
        request: what a user says.
        tools: in the order in which they are listed.
    """
    listed = [f"{tool.name}: {' '.join(tool.description.split())[:_LONGEST_LINE]}" for tool in tools]
    return "\n".join(
        [
            "These are the tools of an assistant:",
            *listed,
            "",
            f"A user says: {request}",
            "",
            "Which one tool does this ask for? Answer with its name.",
        ]
    )


def named(reply: str, tools: Mapping[str, Tool]) -> str | None:
    """The tool that a reply names; None if it names none, or several without saying which.

    Args:
        reply: what the model answered.
        tools: those there are.
    """
    bare = reply.strip().strip("`\"'*_.: \n").removesuffix("()")
    if bare in tools:
        return bare
    pattern = "|".join(re.escape(name) for name in sorted(tools, key=len, reverse=True))
    found = set(re.findall(rf"(?<![\w-])(?:{pattern})(?![\w-])", reply)) if tools else set[str]()
    return found.pop() if len(found) == 1 else None
