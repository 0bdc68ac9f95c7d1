"""The chains of the held-out tasks; see `chains`."""

from __future__ import annotations

from genenv.domains.tool_calling.phrasings.chains import Chain
from genenv.domains.tool_calling.phrasings.template import Phrases

HELD_OUT_CHAINS: tuple[Chain, ...] = (
    Chain(
        tools=("search_email", "flag_email"),
        links={"email_id": "$1.email_id"},
        phrases=Phrases(
            explicit=(
                'Pick out the email on "{query}" in my mailbox and give it a {color} flag',
                'Look for mail concerning "{query}" and flag what you find in {color}',
            ),
            indirect=(
                'The email on "{query}", wherever it is in my mailbox, ought to carry a {color} flag.',
            ),
        ),
    ),
    Chain(
        tools=("find_contact", "send_email"),
        links={"to": "$1.email"},
        phrases=Phrases(
            explicit=(
                (
                    "Get the email address of {name} from my address book and "
                    'mail "{body}" to it, subject "{subject}"'
                ),
                (
                    "Check my address book for the email address of {name}, then write "
                    'to it. Subject: "{subject}". Text: "{body}".'
                ),
            ),
            indirect=(
                (
                    '{name} should get my email "{subject}", but the address is buried '
                    'in my address book. All it says is "{body}".'
                ),
            ),
        ),
    ),
    Chain(
        tools=("search_products", "place_order"),
        links={"product": "$1.product"},
        phrases=Phrases(
            explicit=(
                (
                    "Look which {query} cost {max_price} dollars or less and have "
                    "{quantity} of the cheapest kind sent to {address}"
                ),
                (
                    "Browse for {query} with a price limit of {max_price} dollars; order "
                    "{quantity} of the least expensive kind to {address}"
                ),
            ),
            relative=(
                (
                    "Look which {query} cost {max_price:rel} dollars or less and have "
                    "{quantity} of the cheapest kind sent to {address}"
                ),
            ),
            indirect=(
                "The people at {address} are to get {quantity} {query}: the least expensive kind the shop "
                "can find, with a price limit of {max_price} dollars.",
            ),
        ),
    ),
    Chain(
        tools=("find_free_slot", "move_event"),
        links={"start": "$1.start"},
        phrases=Phrases(
            explicit=(
                'Check where {minutes} minutes first fit into {date} and push "{title}" to that slot',
                'Determine my first opening of {minutes} minutes on {date}; "{title}" is to be moved there.',
            ),
            relative=('Check where {minutes:rel} first fit into {date} and push "{title}" to that slot',),
            indirect=(
                (
                    '"{title}" can\'t stay where it is. It needs the first opening '
                    "of {minutes} minutes that {date} has to offer."
                ),
            ),
        ),
    ),
    Chain(
        tools=("read_file", "send_email"),
        links={"body": "$1.content"},
        slots={"subject": "subject"},
        phrases=Phrases(
            explicit=(
                'Take the text of {path} and mail it to {to} under the subject "{subject}"',
                (
                    "Fetch what {path} contains and make it the body of an email "
                    'to {to} with the subject line "{subject}"'
                ),
            ),
            indirect=(
                '{to} would like to have the text of {path} by email, with "{subject}" as the subject.',
            ),
        ),
    ),
    Chain(
        tools=("search_notes", "send_message"),
        links={"text": "$1.text"},
        phrases=Phrases(
            explicit=(
                'Dig out my note on "{query}" and text what it says to {to}',
                'Go through my notes for "{query}" and forward the text of that note to {to} by text message',
            ),
            indirect=('{to} would like me to text over whatever my note on "{query}" says.',),
        ),
    ),
    Chain(
        tools=("percent_of", "transfer"),
        links={"amount": "$1.result"},
        phrases=Phrases(
            explicit=(
                (
                    "Calculate {percent} percent of {value} dollars, then shift "
                    "the outcome from {source} over to {target}"
                ),
                "Compute {percent}% of {value} dollars and send that much money from {source} to {target}",
            ),
            relative=(
                (
                    "Calculate {percent:rel} percent of {value} dollars, then shift "
                    "the outcome from {source} over to {target}"
                ),
            ),
            indirect=(
                (
                    "Of the {value} dollars I earned, {percent} percent, once "
                    "calculated, should go from {source} to {target}."
                ),
            ),
        ),
    ),
    Chain(
        tools=("add_days", "create_event"),
        links={"date": "$1.date"},
        phrases=Phrases(
            explicit=(
                'Count {days} days forward from {date} and set up "{title}" at {start} on the day you reach',
                (
                    "Figure out what is {days} days past {date}, and enter "
                    '"{title}" in my calendar for that day at {start}'
                ),
            ),
            relative=(
                'Count {days:rel} forward from {date} and set up "{title}" at {start} on the day you reach',
            ),
            indirect=(
                (
                    "Exactly {days} days past {date}, whatever date that is, my "
                    'calendar ought to show "{title}" at {start}.'
                ),
            ),
        ),
    ),
)
