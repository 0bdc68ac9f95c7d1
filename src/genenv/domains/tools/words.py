"""Words: of which new values are made, and by which names are understood."""

from __future__ import annotations


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _listed("""
Ada Ben Cleo Dario Edith Farid Greta Hugo Iris Jonas Kira Leo Mina Noor Omar Petra Quinn Rosa Sami Tara
""")
LAST_NAMES = _listed("""
Abbott Bauer Castro Dunn Egan Falk Greene Hoang Ito Jansen Keller Lund Moreno Nash Okafor Pratt Rossi Sato
Trent Weber
""")
CITIES = _listed("""
Athens Bergen Cairo Denver Edinburgh Florence Geneva Hanoi Izmir Jakarta Kyoto Lisbon Madrid Nairobi Oslo
Porto
""")
THINGS = _listed("""
kettle lamp desk chair blender backpack charger notebook umbrella monitor bicycle jacket camera printer
toaster headset
""")
QUALITIES = _listed("""
blue small wooden second spare annual early broken northern new old heavy silver quiet weekly open
""")
NOTES = tuple(
    line.strip()
    for line in """
arrived damaged; wrong size; no longer needed; asked for by phone; please call back; checked twice
late by a week; handle with care; agreed with the team; see the attached list; to be confirmed
second reminder; customer was not at home; leave at the door; part is missing; paid in advance
""".replace("\n", ";").split(";")
    if line.strip()
)
"""Short remarks."""
TEXT_WORDS = frozenset(
    _listed("""
note message text body reason comment description content detail resolution summary answer reply memo
observation instruction feedback
""")
)
"""Words of parameters that take a remark."""
PERSON_WORDS = frozenset(
    _listed("""
person customer user author assignee owner member contact employee guest patient recipient sender
""")
)
"""Words of parameters that take a person's name."""
IDENTIFIER_WORDS = frozenset(_listed("alias branch bucket channel container label slug tag topic"))
"""Words of parameters that take a name without spaces."""
VERBS = frozenset(
    _listed("""
add adjust answer append apply archive assign book buy calculate cancel change check clear close compute
confirm convert copy count create decrease delete deliver describe diff disable display edit enable end
fetch file fill find finish format get give increase insert issue list load log look make mark merge modify
move notify open order pay pick place play post print produce provide pull put query read record refund
register release remove rename reopen replace reply report request reserve reset resolve restart restore
retrieve return run save schedule search send set ship show start stop store submit subtract summarize swap
switch tag take tell transfer turn undo unlock update upload validate view withdraw write
""")
)
"""What tools do."""
