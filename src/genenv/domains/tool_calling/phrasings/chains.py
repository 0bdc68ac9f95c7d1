"""Tasks in which a later call uses what an earlier one found, and how people ask for them in the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from genenv.domains.tool_calling.phrasings.template import Phrases, Template

_TO_DOLLARS = {"target": "USD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Two tools, the second of which uses a result of the first."""

    tools: tuple[str, str]
    links: Mapping[str, str]
    """Argument of the second call -> reference. Others of the same name have the same value in both calls."""
    phrases: Phrases
    slots: Mapping[str, str] = field(default_factory=dict[str, str])
    """Arguments that come from another pool than usual."""


TRAINING_CHAINS: tuple[Chain, ...] = (
    Chain(
        tools=("search_flights", "book_flight"),
        links={"flight_id": "$1.flight_id"},
        phrases=Phrases(
            explicit=(
                (
                    "Find the cheapest flight from {origin} to {destination} on "
                    "{date} and book it for {passengers} people"
                ),
                (
                    "Look for flights from {origin} to {destination} on {date}. "
                    "Book {passengers} seats on the cheapest."
                ),
            ),
            relative=(
                (
                    "Find the cheapest flight from {origin} to {destination} for "
                    "{date:day} and book {passengers} seats on it"
                ),
                (
                    "Which flight from {origin} to {destination} is the cheapest "
                    "{date:rel}? Book it for {passengers} people."
                ),
            ),
            indirect=(
                "There are {passengers} of us in {origin}, due in {destination} on {date}. Whatever "
                "flight is cheapest will do, and our seats on it should be booked.",
            ),
        ),
    ),
    Chain(
        tools=("search_products", "add_to_cart"),
        links={"product": "$1.product"},
        phrases=Phrases(
            explicit=(
                (
                    "Find the cheapest {query} for at most {max_price} dollars "
                    "and add {quantity} of them to my cart"
                ),
                (
                    "Search for {query} up to {max_price} dollars and put "
                    "{quantity} of the cheapest kind into my cart"
                ),
            ),
            relative=(
                (
                    "Find the cheapest {query} for up to {max_price:rel} dollars "
                    "and put {quantity} of them into my cart"
                ),
            ),
            indirect=(
                "I need {query}, {quantity} of them, and won't pay more than {max_price} dollars "
                "each. I'd like the cheapest the shop can find in my cart.",
            ),
        ),
    ),
    Chain(
        tools=("find_contact", "send_message"),
        links={"to": "$1.phone"},
        phrases=Phrases(
            explicit=(
                'Look up the phone number of {name} and text "{text}" to it',
                'Find the number of {name} in my contacts, then send a text message to it: "{text}".',
            ),
            indirect=(
                '{name} has to get "{text}" as a text message, but I lack the number. Look in my contacts.',
            ),
        ),
    ),
    Chain(
        tools=("find_free_slot", "create_event"),
        links={"start": "$1.start"},
        phrases=Phrases(
            explicit=(
                (
                    "Find my earliest free slot of {minutes} minutes on {date} and "
                    'schedule "{title}" for it, {minutes} minutes long'
                ),
                (
                    "See when I am free for {minutes} minutes on {date} and put "
                    '"{title}" there for these {minutes} minutes'
                ),
            ),
            relative=(
                (
                    "Find my earliest free slot of {minutes:rel} on {date} and "
                    'put "{title}" there for the whole of it'
                ),
                (
                    "See when I am free for {minutes} minutes {date:rel} and "
                    'schedule "{title}" for those {minutes} minutes'
                ),
            ),
            indirect=(
                "On {date} there must be {minutes} minutes free somewhere. The earliest of them "
                'should go to "{title}" in my calendar, all {minutes} minutes.',
            ),
        ),
    ),
    Chain(
        tools=("search_email", "archive_email"),
        links={"email_id": "$1.email_id"},
        phrases=Phrases(
            explicit=(
                'Find the email about "{query}" and archive it',
                'Search my inbox for "{query}" and move the email you find to the archive',
            ),
            indirect=(
                (
                    'Somewhere in my inbox is an email about "{query}". It is '
                    "dealt with and belongs in the archive."
                ),
            ),
        ),
    ),
    Chain(
        tools=("place_order", "track_order"),
        links={"order_id": "$1.order_id"},
        phrases=Phrases(
            explicit=(
                "Order {quantity} {product} to {address} and then check the status of that order",
                "Buy {quantity} {product} for delivery to {address}, then track the order for me",
            ),
            relative=("Order {quantity:rel} {product} to {address} and then check the status of that order",),
            indirect=(
                "{quantity} {product} should come to {address}. Once they are "
                "ordered, I'd like to know how far along the order is.",
            ),
        ),
    ),
    Chain(
        tools=("read_file", "add_note"),
        links={"text": "$1.content"},
        phrases=Phrases(
            explicit=(
                'Read {path} and save its content as a new note titled "{title}"',
                'Open the file {path} and copy what it says into a new note "{title}"',
            ),
            indirect=(
                'What the file {path} says should also be in my notes, as a new one called "{title}".',
            ),
        ),
    ),
    Chain(
        tools=("search_notes", "append_note"),
        links={"title": "$1.title"},
        phrases=Phrases(
            explicit=(
                'Find my note about "{query}" and add the line "{text}" to it',
                'Search my notes for "{query}" and append "{text}" to the note you find',
            ),
            indirect=('One of my notes mentions "{query}". That note lacks the line "{text}".',),
        ),
    ),
    Chain(
        tools=("convert_currency", "pay_bill"),
        links={"amount": "$1.amount"},
        slots={"source": "foreign"},
        phrases=Phrases(
            explicit=(
                Template("Convert {amount} {source} to US dollars and pay {payee} the result", _TO_DOLLARS),
                Template(
                    "Work out what {amount} {source} are in US dollars, then pay {payee} that amount",
                    _TO_DOLLARS,
                ),
            ),
            relative=(
                Template(
                    "Convert {amount:rel} {source} to US dollars and pay {payee} the result", _TO_DOLLARS
                ),
            ),
            indirect=(
                Template(
                    (
                        "The bill from {payee} is over {amount} {source}, but it has "
                        "to be paid in US dollars, converted first."
                    ),
                    _TO_DOLLARS,
                ),
            ),
        ),
    ),
    Chain(
        tools=("add_days", "book_hotel"),
        links={"checkin": "$1.date"},
        phrases=Phrases(
            explicit=(
                (
                    "Work out the date {days} days after {date} and book a hotel "
                    "in {city} from then on for {nights} nights"
                ),
                (
                    "Add {days} days to {date} and book me a hotel in {city} for "
                    "{nights} nights starting on the resulting date"
                ),
            ),
            relative=(
                (
                    "Work out the date {days:rel} after {date} and book a hotel "
                    "in {city} from then on for {nights} nights"
                ),
            ),
            indirect=(
                "I get to {city} exactly {days} days after {date}, which I can't work out. "
                "From that date I need a hotel there for {nights} nights.",
            ),
        ),
    ),
    Chain(
        tools=("split_bill", "transfer"),
        links={"amount": "$1.share"},
        phrases=Phrases(
            explicit=(
                (
                    "Split a bill of {total} dollars between {people} people and "
                    "move my share from {source} to {target}"
                ),
                (
                    "Divide {total} dollars among {people} people, then transfer the "
                    "share of a single person from {source} to {target}"
                ),
            ),
            relative=(
                (
                    "Split a bill of {total} dollars between {people:rel} people "
                    "and move my share from {source} to {target}"
                ),
            ),
            indirect=(
                "The {people} of us have an evenly shared bill of {total} dollars. My part "
                "of it is still in {source} and should be in {target}.",
            ),
        ),
    ),
    Chain(
        tools=("book_hotel", "add_note"),
        links={"text": "$1.booking_id"},
        phrases=Phrases(
            explicit=(
                (
                    "Book a hotel in {city} from {checkin} for {nights} nights and put "
                    'just the booking number in a new note "{title}"'
                ),
                (
                    "Get me a hotel in {city}, {nights} nights from {checkin}, and "
                    'make a note "{title}" holding only the booking id'
                ),
            ),
            relative=(
                (
                    "Book a hotel in {city} from {checkin} for {nights:rel} and put "
                    'just the booking number in a new note "{title}"'
                ),
            ),
            indirect=(
                "I need a hotel in {city} from {checkin} for {nights} nights. The bare booking "
                'number should then be in a new note called "{title}".',
            ),
        ),
    ),
)
