"""An MCP server without any package that keeps its orders in memory: no file shows them.

Its argument says whether its tools declare what writes (`hints`).
"""

import json
import sys

hints = "hints" in sys.argv
STRING = {"type": "string"}
ITEMS = ("lamp", "desk", "chair", "shelf", "rug", "stool")
ORDERS = {f"A-{n}": {"item": item, "status": "open", "note": ""} for n, item in enumerate(ITEMS, 1)}
archived = set()
TOOLS = {
    "list_orders": ("List the orders.", {}, True),
    "get_order": ("Show an order.", {"order_id": STRING}, True),
    "cancel_order": ("Cancel an order.", {"order_id": STRING}, False),
    "add_note": ("Add a note to an order.", {"order_id": STRING, "note": STRING}, False),
    "archive_order": ("Archive an order.", {"order_id": STRING}, False),
    "mail_customer": ("Mail the customer of an order.", {"order_id": STRING, "text": STRING}, False),
}


class Refused(Exception):
    """The call fails."""


def called(name, args):
    if name == "list_orders":
        return [{"order_id": key, "item": one["item"]} for key, one in ORDERS.items()]
    key = args["order_id"]
    if key not in ORDERS:
        raise Refused("there is no such order")
    if name == "mail_customer":
        return "sent"
    if name == "archive_order":
        if key in archived:
            raise Refused("it is archived already")
        archived.add(key)
    elif name == "cancel_order":
        if ORDERS[key]["status"] != "open":
            raise Refused("it is not open")
        ORDERS[key]["status"] = "cancelled"
    elif name == "add_note":
        ORDERS[key]["note"] = args["note"]
    return {"order_id": key, **ORDERS[key]}


def described(name, said, schema, reads):
    parameters = {"type": "object", "properties": schema, "required": list(schema)}
    told = {"annotations": {"readOnlyHint": reads}} if hints else {}
    return {"name": name, "description": said, "inputSchema": parameters, **told}


def answer(method, params):
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "memory", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **about}
    if method == "tools/list":
        return {"tools": [described(name, *told) for name, told in TOOLS.items()]}
    if method == "tools/call":
        try:
            text, wrong = json.dumps(called(params["name"], params.get("arguments") or {})), False
        except Refused as error:
            text, wrong = str(error), True
        return {"content": [{"type": "text", "text": text}], "isError": wrong}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params", {}))
    told = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
