"""Right answers, answers near them, and exact match, F1 and sub-string match, worked out by hand.

F1 is 2 * shared words / (words of both), after SQuAD's normalization.
"""

from __future__ import annotations

NEAR_MISSES: list[tuple[str, str, float, float, float]] = [
    # Case, articles, spaces and marks do not count.
    ("james madison", "James Madison", 1, 1, 1),
    ("Titan IIIE", "The Titan IIIE", 1, 1, 1),
    ("Titan IIIE", "Titan III-E", 1, 1, 1),
    ("131", "131.", 1, 1, 1),
    ("Yes", "Yes.", 1, 1, 1),
    ("King Wu of Zhou", "King  Wu \t of Zhou", 1, 1, 1),
    ("Pickens Butler Watson", "Pickens Butler\nWatson", 1, 1, 1),
    ("May 9, 2005", "May 9,\u00a02005", 1, 1, 1),
    ("George VI\n", "George VI", 1, 1, 1),
    ("Boston", "'Boston'", 1, 1, 1),
    ("Boston", "**Boston**", 1, 1, 1),
    ("Boston", "An a the Boston", 1, 1, 1),
    ("One World, One Dream", "One World One Dream", 1, 1, 1),
    ("1045 BC", "1045 B.C.", 1, 1, 1),
    ("l", "L", 1, 1, 1),
    (
        "The Formation of Vegetable Mould Through the Action of Worms",
        "Formation of Vegetable Mould through Action of Worms",
        1,
        1,
        1,
    ),
    # Words too many, too few, or others.
    ("Titan IIIE", "a Titan IIIE rocket", 0, 4 / 5, 1),
    ("David Dinkins", "Dinkins", 0, 2 / 3, 0),
    ("David Dinkins", "David N. Dinkins", 0, 4 / 5, 0),
    ("Charles Tupper Sr.", "Charles Tupper", 0, 4 / 5, 0),
    ("Oranienburg, Germany", "Oranienburg", 0, 2 / 3, 0),
    ("Oranienburg, Germany", "Oranienburg in Germany", 0, 4 / 5, 0),
    ("United States", "the United States of America", 0, 2 / 3, 1),
    ("United States", "USA", 0, 0, 0),
    ("United States", "U.S.", 0, 0, 0),
    ("India and Bangladesh", "India, Bangladesh", 0, 4 / 5, 0),
    ("Boston", "It is Boston", 0, 1 / 2, 1),
    ("Yes", "Yes, it was.", 0, 1 / 2, 1),
    ("Yes", "No", 0, 0, 0),
    ("One World, One Dream", "One Dream", 0, 2 / 3, 0),
    ("One World, One Dream", "one one one", 0, 4 / 7, 0),
    (
        "The Formation of Vegetable Mould Through the Action of Worms",
        "The Formation of Vegetable Mould",
        0,
        2 / 3,
        0,
    ),
    # Another order.
    ("David Dinkins", "Dinkins, David", 0, 1, 0),
    ("India and Bangladesh", "Bangladesh and India", 0, 1, 0),
    # Letters more or less: the sub-string match is of letters, not of words.
    ("pilot", "pilots", 0, 0, 1),
    ("Centrifugal Force", "centrifugal forces", 0, 1 / 2, 1),
    ("Yes", "yesterday", 0, 0, 1),
    ("131", "1310", 0, 0, 1),
    ("l", "lead", 0, 0, 1),
    ("1045 BC", "1045 BCE", 0, 1 / 2, 1),
    # Dates.
    ("20 June 1837", "June 20, 1837", 0, 1, 0),
    ("20 June 1837", "20th June 1837", 0, 2 / 3, 0),
    ("April 30, 1789", "April 30 1789", 1, 1, 1),
    ("April 30, 1789", "April 30,1789", 0, 2 / 5, 0),
    ("April 30, 1789", "1789", 0, 1 / 2, 0),
    ("April 30, 1789", "1789-04-30", 0, 0, 0),
    ("1045 BC", "-1045", 0, 2 / 3, 0),
    # Numbers and units: marks inside a number go, so that 10.8 is 108.
    ("131", "131 years", 0, 2 / 3, 1),
    ("131", "one hundred thirty-one", 0, 0, 0),
    ("4,884 m", "4884 m", 1, 1, 1),
    ("4,884 m", "4.884 m", 1, 1, 1),
    ("4,884 m", "4884m", 0, 0, 0),
    ("4,884 m", "4884 meters", 0, 1 / 2, 1),
    ("10.8", "108", 1, 1, 1),
    ("10.8", "10.80", 0, 0, 1),
    ("320 km/h", "320 km per h", 0, 1 / 3, 0),
    ("320 km/h", "320kmh", 0, 0, 0),
    ("6,300 km", "6 300 km", 0, 2 / 5, 0),
    ("Saturn V", "Saturn 5", 0, 1 / 2, 0),
    # Hyphens join words.
    ("Conway Berners-Lee", "Conway Berners Lee", 0, 2 / 5, 0),
    ("Golden State", "The Golden-State", 0, 0, 0),
    ("Titan IIIE", "Titan III E", 0, 2 / 5, 0),
    # What is not ASCII is neither folded nor taken out.
    ("Toghon Temür", "TOGHON TEMÜR", 1, 1, 1),
    ("Toghon Temür", "Toghon Temur", 0, 1 / 2, 0),
    ("Toghon Temür", "Toghon Temu\u0308r", 0, 1 / 2, 0),
    ("Helium", "ＨＥＬＩＵＭ", 0, 0, 0),
    ("Boston", "“Boston”", 0, 0, 1),
    ("Charles Tupper Sr.", "Charles Tupper’s father", 0, 1 / 3, 0),
    # Nothing.
    ("pilot", "", 0, 0, 0),
    ("pilot", "   ", 0, 0, 0),
    ("pilot", "...", 0, 0, 0),
    ("pilot", "the", 0, 0, 0),
]
