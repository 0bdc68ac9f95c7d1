"""An MCP server without any package that keeps drafts on shelves: of all folders those that git made can be one.

Every tool takes the folder it is about. Nothing of its state lies open: drafts are branches, pages are commits.
"""

import json
import os
import subprocess
import sys

STRING = {"type": "string"}
PLACE = {"folder": STRING}
TOOLS = {
    "list_drafts": ("List the drafts.", PLACE),
    "list_pages": ("List the pages of the open draft.", PLACE),
    "begin_draft": ("Begin a draft, as a copy of the open one.", {**PLACE, "title": STRING}),
    "open_draft": ("Open a draft.", {**PLACE, "draft": STRING}),
    "add_page": ("Add a page to the open draft.", {**PLACE, "words": STRING}),
}
OUTSIDE = os.path.dirname(os.getcwd())


def git(folder, *words):
    told = {**os.environ, "GIT_CEILING_DIRECTORIES": OUTSIDE, "GIT_CONFIG_NOSYSTEM": "1", "HOME": OUTSIDE}
    where = os.path.join(os.getcwd(), folder)
    done = subprocess.run(["git", *words], cwd=where, env=told, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def called(name, args):
    folder = args["folder"]
    if name == "list_drafts":
        return git(folder, "branch")
    if name == "list_pages":
        return git(folder, "log", "--format=Page: %h%nWords: %s%nWritten: %cs%n")
    if name == "begin_draft":
        git(folder, "branch", args["title"].replace(" ", "-"))
        return "begun"
    if name == "open_draft":
        git(folder, "checkout", "-q", args["draft"])
        return "open"
    git(folder, "rev-parse", "--git-dir")  # before anything is written
    with open(os.path.join(os.getcwd(), folder, "pages.txt"), "a") as pages:
        pages.write(args["words"] + "\n")
    git(folder, "add", "pages.txt")
    git(folder, "commit", "-q", "-m", args["words"].splitlines()[0])
    return "added"


def answer(method, params):
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "shelf", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **about}
    if method == "tools/list":
        schemas = {
            name: {"type": "object", "properties": schema, "required": list(schema)}
            for name, (_, schema) in TOOLS.items()
        }
        return {
            "tools": [
                {"name": name, "description": said, "inputSchema": schemas[name]}
                for name, (said, _) in TOOLS.items()
            ]
        }
    if method == "tools/call":
        try:
            text, wrong = called(params["name"], params.get("arguments") or {}), False
        except (OSError, ValueError, IndexError, KeyError) as error:
            text, wrong = str(error) or "it cannot be done", True
        return {"content": [{"type": "text", "text": text}], "isError": wrong}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params", {}))
    told = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
