"""An MCP server over HTTP as somebody else would run it: `python shop_server.py PORT LOG [CALLS]`.

After so many calls it dies in the middle of one.
"""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

log = Path(sys.argv[2])
server = MCPServer("shop", log_level="ERROR")
READS = ToolAnnotations(readOnlyHint=True)
NAMES = ("Ada Wong", "Ben Ruiz", "Cleo Park", "Dario Falk", "Edith Ito", "Farid Nash")
ITEMS = ("kettle", "lamp", "desk", "chair", "blender", "jacket", "camera", "toaster")
customers = {f"C-{number}": {"name": name} for number, name in enumerate(NAMES, 101)}
orders = {
    f"O-{number}": {"item": item, "price": 7 * number % 90 + 3, "customer_id": f"C-{101 + number % 6}"}
    for number, item in enumerate(ITEMS * 2, 5001)
}


def heard(text):
    with log.open("a") as file:
        file.write(text + "\n")
    if len(sys.argv) > 3 and len(log.read_text().splitlines()) > int(sys.argv[3]):
        os._exit(1)


@server.tool(annotations=READS)
def list_orders() -> list[dict[str, str]]:
    """List all orders."""
    heard("list_orders")
    return [{"order_id": key, "item": one["item"]} for key, one in orders.items()]


@server.tool(annotations=READS)
def get_order(order_id: str) -> dict[str, str | int]:
    """Show an order."""
    heard(f"get_order {order_id}")
    if order_id not in orders:
        raise ToolError(f"there is no order {order_id}")
    return {"order_id": order_id, **orders[order_id]}


@server.tool(annotations=READS)
def get_customer(customer_id: str) -> dict[str, str]:
    """Show a customer."""
    heard(f"get_customer {customer_id}")
    if customer_id not in customers:
        raise ToolError(f"there is no customer {customer_id}")
    return {"customer_id": customer_id, **customers[customer_id]}


@server.tool()
def cancel_order(order_id: str) -> dict[str, str]:
    """Cancel an order."""
    heard(f"cancel_order {order_id}")
    if orders.pop(order_id, None) is None:
        raise ToolError(f"there is no order {order_id}")
    return {"order_id": order_id, "status": "cancelled"}


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
