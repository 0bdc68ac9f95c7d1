"""How people ask for each tool: hand-written sentences, one module an app, in two splits that never meet."""

from genenv.domains.tool_calling.phrasings.bank import BANK
from genenv.domains.tool_calling.phrasings.calendar import CALENDAR
from genenv.domains.tool_calling.phrasings.contacts import CONTACTS
from genenv.domains.tool_calling.phrasings.convert import CONVERT
from genenv.domains.tool_calling.phrasings.email import EMAIL
from genenv.domains.tool_calling.phrasings.files import FILES
from genenv.domains.tool_calling.phrasings.home import HOME
from genenv.domains.tool_calling.phrasings.music import MUSIC
from genenv.domains.tool_calling.phrasings.notes import NOTES
from genenv.domains.tool_calling.phrasings.shop import SHOP
from genenv.domains.tool_calling.phrasings.template import ToolPhrases
from genenv.domains.tool_calling.phrasings.trips import TRIPS

PHRASES: dict[str, ToolPhrases] = {
    **BANK, **CALENDAR, **CONTACTS, **CONVERT, **EMAIL, **FILES, **HOME, **MUSIC, **NOTES, **SHOP, **TRIPS,
}  # fmt: skip
"""By tool."""
