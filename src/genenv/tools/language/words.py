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

ARTICLES = frozenset(
    _listed("""
a all an another any both each every its no one several some that the their these this those two
""")
)
"""Before a noun: what comes before one of them at the start of a sentence is a verb, as a rule."""
NO_VERBS = ARTICLES | frozenset(
    _listed("""
about and are as at by for from given how if in is it not of on or per to what when where whether which who
whom whose why with without
""")
)
"""A sentence that begins with one of them is no order, whatever follows."""


def _sides(text: str) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    lines = (line.split("|") for line in text.strip().splitlines())
    return tuple((frozenset(one.split()), frozenset(other.split())) for one, other in lines)


OPPOSITES = _sides("""
add append book create insert issue place post register reserve save store submit write | cancel \
clear delete destroy discard drop erase remove withdraw
open reopen | close shut resolve
send forward publish | read receive
start begin launch resume run | stop end halt pause
enable activate | disable deactivate
lock | unlock
increase raise add | decrease lower reduce subtract
deposit | withdraw
load | unload
mount | unmount
show display | hide
import | export
upload | download
push | pull
accept approve confirm allow | reject decline deny refuse cancel
archive | restore
block | unblock
buy purchase | sell
lend | borrow
borrow rent | return
charge bill | refund
connect attach join | disconnect detach leave
assign | release
refund | charge
cancel | restore reopen confirm
delete remove | restore recover keep
encode encrypt compress | decode decrypt decompress
""")
"""Verbs, and those that undo them; each side is the opposite of the other."""
CHANGING = frozenset(
    _listed("""
add append archive assign book buy cancel change create delete edit erase insert modify overwrite pay refund
remove rename replace reserve send set submit update upload withdraw write
""")
)
"""What is not asked of a tool that only reads."""
READING = frozenset(_listed("describe display fetch find list look read search see show tell view"))
"""With which nothing is changed."""
PARTICLES = (("on", "off"), ("in", "out"), ("up", "down"))
"""Turn on and turn off, check in and check out."""
DENIALS = frozenset(
    _listed("avoid cannot except instead never no nor not nothing revert undo unless without")
)
"""Words that take back what else is said; so does what ends in n't."""
NO_REQUEST = frozenset(
    _listed("""
a an the this that these those there here it its he she they them his her their i me my mine we us our you
your what which who whose whom when where why how is are am was were be been do does did has have had can
could would will shall should may might must if and or but because since so then thus sure certainly okay ok
yes no hi hello hey dear thanks thank sorry example user assistant tool first
second third fourth fifth sixth last next finally option another
""")
)
"""With which no order begins: `please` cannot stand before it."""
