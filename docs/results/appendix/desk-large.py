"""Write a support desk with ten customers and thirty orders from that of docs/guides/your-own-tools.md.

python desk-large.py desk.py desk_large.py
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

NAMES = "Ada Wong/Ben Ruiz/Cleo Park/Dan Moss/Eva Lind/Finn Osei/Gia Bell/Hugo Sato/Ines Vega/Jon Kerr"
ITEMS = "kettle/lamp/desk/chair/mirror/rug/shelf/clock/blender/toaster"


def main(source: str, target: str) -> None:
    """Replace the customers and orders of the file `source`, and write it as `target`."""
    text = Path(source).read_text(encoding="utf-8")
    begin, end = text.index("        self.customers = {"), text.index("        self.tickets:")
    draw, items = random.Random(0), ITEMS.split("/")
    customers = {
        f"C-{101 + i}": {"name": name, "email": f"{name.split()[0].lower()}@example.com"}
        for i, name in enumerate(NAMES.split("/"))
    }
    orders = {
        f"O-{5001 + i}": {
            "customer_id": f"C-{101 + (i * 7) % 10}",
            "item": items[(i * 3 + i // 10) % 10],
            "price": draw.randrange(40, 800) / 2,
            "status": draw.choice(["paid", "shipped", "delivered"]),
            "refunded": 0,
        }
        for i in range(30)
    }
    filled = f"        self.customers = {customers!r}\n        self.orders = {orders!r}\n"
    Path(target).write_text(text[:begin] + filled + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
