"""How people ask for the tools of their trips."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

TRIPS: dict[str, ToolPhrases] = {
    "search_flights": ToolPhrases(
        slots={"origin destination": "route", "date": "date"},
        training=Phrases(
            explicit=(
                "Find flights from {origin} to {destination} on {date}",
                "Search for a flight from {origin} to {destination} on {date}",
                "Which flights go from {origin} to {destination} on {date}?",
                "Show me flights to {destination} from {origin} for {date}",
            ),
            relative=(
                "Find flights from {origin} to {destination} for {date:day}",
                "Which flights go from {origin} to {destination} {date:rel}?",
            ),
            indirect=(
                "I'm in {origin} and have to be in {destination} on {date}. What could I fly with?",
                "I wonder how I could fly from {origin} to {destination} on {date}.",
            ),
            missing={
                "date": ("Find flights from {origin} to {destination}",),
                "origin": ("Search for a flight to {destination} on {date}",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Look up plane connections that take me from {origin} to {destination} on {date}",
                "Check which planes leave {origin} for {destination} on {date}",
                "Are there any flights out of {origin} to {destination} on {date}?",
            ),
            relative=(
                "Check which planes leave {origin} for {destination} {date:rel}",
                "Are there any flights out of {origin} to {destination} {date:rel}?",
            ),
            indirect=(
                "I plan to fly out of {origin} to {destination} on {date}, but I don't know the flights yet.",
                (
                    "On {date} I want to fly from {origin} to {destination}; "
                    "what is on offer is still a mystery."
                ),
            ),
            missing={"date": ("Check which planes leave {origin} for {destination}",)},
        ),
    ),
    "book_flight": ToolPhrases(
        slots={"flight_id": "flight_id", "passengers": "passengers"},
        training=Phrases(
            explicit=(
                "Book flight {flight_id} for {passengers} passengers",
                "Book {passengers} seats on flight {flight_id}",
                "Can you book flight {flight_id} for {passengers} people?",
                "Get {passengers} tickets for flight {flight_id}",
            ),
            relative=(
                "Book flight {flight_id} for {passengers:rel} passengers",
                "Get {passengers:rel} tickets for flight {flight_id}",
            ),
            indirect=(
                "There are {passengers} of us, and we want to be on flight {flight_id}.",
                "{flight_id} is the flight we picked, and we still need our {passengers} tickets.",
            ),
            missing={
                "passengers": (
                    "Book seats for us on flight {flight_id}",
                    "Get tickets for flight {flight_id}",
                ),
                "flight_id": ("Book a flight for {passengers} passengers",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Reserve {passengers} places on flight {flight_id}",
                "Buy plane tickets for {passengers} travelers on flight {flight_id}",
                "Please make a reservation for a party of {passengers} on flight {flight_id}.",
            ),
            relative=(
                "Reserve {passengers:rel} places on flight {flight_id}",
                "Buy plane tickets for {passengers:rel} travelers on flight {flight_id}",
            ),
            indirect=(
                "Our group of {passengers} has settled on flight {flight_id}, but nothing is reserved yet.",
                "Flight {flight_id} suits all {passengers} of us, so our seats had better be secured.",
            ),
            missing={"passengers": ("Reserve places for my family on flight {flight_id}",)},
        ),
    ),
    "book_hotel": ToolPhrases(
        slots={"city": "city", "checkin": "date", "nights": "nights"},
        training=Phrases(
            explicit=(
                "Book a hotel in {city} from {checkin} for {nights} nights",
                "Book me a room in {city} for {nights} nights, checking in on {checkin}",
                "Can you get me a hotel room in {city} for {nights} nights starting {checkin}?",
                "I want a hotel in {city}: check-in {checkin}, {nights} nights.",
            ),
            relative=(
                "Book a hotel in {city} from {checkin} for {nights:rel}",
                "Book me a room in {city} for {nights} nights, with check-in {checkin:rel}",
            ),
            indirect=(
                (
                    "I arrive in {city} on {checkin} and have nowhere to sleep "
                    "for the {nights} nights I'm there."
                ),
                "I will be in {city} for {nights} nights from {checkin} and need a roof over my head.",
            ),
            missing={
                "nights": ("Book a hotel in {city}, checking in on {checkin}",),
                "checkin": ("Book me a hotel room in {city} for {nights} nights",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Reserve a hotel room in {city} for {nights} nights as of {checkin}",
                "Find me a bed in a {city} hotel and book it: {nights} nights from {checkin}",
                "Please arrange a stay of {nights} nights at a hotel in {city} with arrival on {checkin}.",
            ),
            relative=(
                "Reserve a hotel room in {city} for {nights:rel} as of {checkin}",
                "Please arrange a hotel stay of {nights} nights in {city} with arrival {checkin:rel}.",
            ),
            indirect=(
                "My {nights} nights in {city} begin on {checkin}, and I still lack a hotel room.",
                (
                    "Friends in {city} cannot put me up, so for {nights} nights "
                    "from {checkin} it has to be a hotel."
                ),
            ),
            missing={"nights": ("Reserve a hotel room in {city} with arrival on {checkin}",)},
        ),
    ),
    "cancel_booking": ToolPhrases(
        slots={"booking_id": "booking_id"},
        training=Phrases(
            explicit=(
                "Cancel booking {booking_id}",
                "Cancel my trip booking with the number {booking_id}",
                "Please cancel the reservation {booking_id}.",
                "Call off the booking {booking_id}",
            ),
            indirect=(
                "We can't travel after all, so booking {booking_id} is of no use to us.",
                "I won't be needing booking {booking_id} any more.",
            ),
            missing={
                "booking_id": (
                    "Cancel my booking",
                    "We can't travel after all. Please cancel the reservation.",
                )
            },
        ),
        held_out=Phrases(
            explicit=(
                "Annul the reservation {booking_id}",
                "Undo the booking that has the number {booking_id}",
                "Could you get me out of booking {booking_id}?",
            ),
            indirect=(
                "My plans fell through, and with them the reservation {booking_id}.",
                "Somebody else can have what I reserved under {booking_id}; I am staying at home.",
            ),
            missing={"booking_id": ("Undo the booking I made for the trip",)},
        ),
    ),
    "get_weather": ToolPhrases(
        slots={"city": "city", "date": "date"},
        training=Phrases(
            explicit=(
                "What will the weather be like in {city} on {date}?",
                "Get the weather forecast for {city} on {date}",
                "Check the weather in {city} for {date}",
                "How is the weather in {city} on {date}?",
            ),
            relative=(
                "What will the weather be like in {city} {date:rel}?",
                "Check the weather in {city} for {date:day}",
            ),
            indirect=(
                "I'm going to {city} on {date} and don't know whether to pack a raincoat.",
                "I wonder if I will need an umbrella in {city} on {date}.",
            ),
            missing={
                "date": ("Check the weather in {city} for the day of my visit",),
                "city": ("What will the weather be like there on {date}?",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Tell me the forecast for {city} for {date}",
                "Find out what sort of weather {city} gets on {date}",
                "Will it rain in {city} on {date}?",
            ),
            relative=(
                "Tell me what sort of weather {city} gets {date:rel}",
                "Will it rain in {city} {date:rel}?",
            ),
            indirect=(
                "We are planning a picnic in {city} on {date}, if the sky allows.",
                "My shoes are not made for rain, and on {date} I will be walking around {city}.",
            ),
            missing={"city": ("Tell me the forecast for {date}",)},
        ),
    ),
}
