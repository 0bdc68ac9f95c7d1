"""The relations of the knowledge base, and the words in which questions and passages say them.

A hop goes along a relation, from subject to object, or back, from an object to its only subject. Each way has
a name, which specs use, and phrases that end where the thing they start from is named, so that phrases one
after another nest: "the currency of" + "the country whose capital is" + "Oslo". No phrase occurs in two
ways: a question can be read back into its chain.

A way back says that there is only one such subject, in the world and not only in the data. So there is none
where the data lacks some: an official language, a country of discovery. A city's only airport is a fact of
its own, gathered where it is known to be the only one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

THINGS = frozenset({"country", "city", "airport", "element", "currency", "language", "state", "thing"})
"""Kinds that a chain may pass through; the others (codes, years, ...) only begin or end one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A kind of fact."""

    name: str
    """Also the name of the hop from subject to object."""
    subject: str
    """Kind of the subject."""
    object: str
    """Kind of the object."""
    words: tuple[str, ...]
    """Phrases for the object of a subject, e.g. "the capital of"."""
    sentence: str = ""
    """How a passage about the subject says it, with `{}` for the object."""
    back: str = ""
    """Name of the hop from object to subject; empty: there is none."""
    back_words: tuple[str, ...] = field(default=())
    """Phrases for the only subject of an object, e.g. "the country whose capital is"."""
    many: bool = False
    """A subject may have several objects; then no hop goes from it. Otherwise two objects contradict."""

    @property
    def says(self) -> str:
        """The sentence of a passage, with `{}` for the object."""
        return self.sentence or f"Its {self.name} is {{}}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One way along a relation."""

    relation: Relation
    backward: bool

    @property
    def name(self) -> str:
        """What specs call it."""
        return self.relation.back if self.backward else self.relation.name

    @property
    def words(self) -> tuple[str, ...]:
        """Its phrases."""
        return self.relation.back_words if self.backward else self.relation.words

    @property
    def source(self) -> str:
        """Kind of what it starts from."""
        return self.relation.object if self.backward else self.relation.subject

    @property
    def target(self) -> str:
        """Kind of what it leads to."""
        return self.relation.subject if self.backward else self.relation.object


RELATIONS: tuple[Relation, ...] = (
    Relation(
        name="capital",
        subject="country",
        object="city",
        words=("the capital of", "the capital city of", "the seat of government of"),
        back="capital of",
        back_words=(
            "the country whose capital is",
            "the country that has as its capital",
            "the country governed from",
        ),
    ),
    Relation(
        name="continent",
        subject="country",
        object="continent",
        words=("the continent of", "the continent that includes", "the part of the world that includes"),
    ),
    Relation(
        name="currency",
        subject="country",
        object="currency",
        words=("the currency of", "the money of", "the legal tender of"),
        back="currency of",
        back_words=(
            "the country whose currency is",
            "the country that has as its currency",
            "the country that pays with",
        ),
        many=True,
    ),
    Relation(
        name="official language",
        subject="country",
        object="language",
        words=("the official language of", "the state language of"),
        sentence="It has the official language {}.",
        many=True,
    ),
    Relation(
        name="calling code",
        subject="country",
        object="code",
        words=("the calling code of", "the telephone prefix of", "the dialing code of"),
        back="calling code of",
        back_words=("the country with the calling code", "the country with the telephone prefix"),
    ),
    Relation(
        name="internet domain",
        subject="country",
        object="code",
        words=("the internet domain of", "the top-level domain of", "the web address ending of"),
        back="internet domain of",
        back_words=("the country with the internet domain", "the country with the top-level domain"),
    ),
    Relation(
        name="two-letter code",
        subject="country",
        object="code",
        words=("the two-letter code of", "the two-letter country code of"),
        back="two-letter code of",
        back_words=("the country with the two-letter code", "the country whose two-letter code is"),
    ),
    Relation(
        name="three-letter code",
        subject="country",
        object="code",
        words=("the three-letter code of", "the three-letter country code of"),
        back="three-letter code of",
        back_words=("the country with the three-letter code", "the country whose three-letter code is"),
    ),
    Relation(
        name="largest city",
        subject="country",
        object="city",
        words=("the largest city of", "the most populous city of", "the biggest city of"),
        back="largest city of",
        back_words=("the country whose largest city is", "the country whose most populous city is"),
    ),
    Relation(
        name="first weekday",
        subject="country",
        object="day",
        words=("the first weekday of calendars in", "the day that begins the week in"),
        sentence="Its first weekday is {}.",
    ),
    Relation(
        name="country",
        subject="city",
        object="country",
        words=("the country that contains", "the country of", "the home country of"),
        sentence="It lies in {}.",
    ),
    Relation(
        name="time zone",
        subject="city",
        object="time zone",
        words=("the time zone of", "the clock zone of"),
    ),
    Relation(
        name="state",
        subject="city",
        object="state",
        words=("the state that contains", "the state of", "the home state of"),
    ),
    Relation(
        name="city served",
        subject="airport",
        object="city",
        words=("the city served by", "the home city of"),
        sentence="It serves {}.",
    ),
    Relation(
        name="airport",
        subject="city",
        object="airport",
        words=("the airport of", "the airport that serves", "the only airport serving"),
        sentence="Its only airport is {}.",
    ),
    Relation(
        name="IATA code",
        subject="airport",
        object="code",
        words=("the IATA code of", "the luggage tag code of"),
        back="IATA code of",
        back_words=("the airport with the IATA code", "the airport whose IATA code is"),
    ),
    Relation(
        name="ICAO code",
        subject="airport",
        object="code",
        words=("the ICAO code of", "the pilots' code of"),
        back="ICAO code of",
        back_words=("the airport with the ICAO code", "the airport whose ICAO code is"),
    ),
    Relation(
        name="elevation",
        subject="airport",
        object="height",
        words=("the elevation of", "the height above sea level of"),
    ),
    Relation(
        name="symbol",
        subject="element",
        object="code",
        words=("the chemical symbol of", "the symbol for"),
        sentence="Its chemical symbol is {}.",
        back="symbol of",
        back_words=("the element with the symbol", "the element whose chemical symbol is"),
    ),
    Relation(
        name="atomic number",
        subject="element",
        object="number",
        words=("the atomic number of", "the proton count of"),
        back="atomic number of",
        back_words=("the element with atomic number", "the element whose atomic number is"),
    ),
    Relation(
        name="group",
        subject="element",
        object="group",
        words=("the group of", "the periodic table column of"),
    ),
    Relation(
        name="period",
        subject="element",
        object="period",
        words=("the period of", "the periodic table row of"),
    ),
    Relation(
        name="block",
        subject="element",
        object="block",
        words=("the block of", "the orbital block of"),
    ),
    Relation(
        name="family",
        subject="element",
        object="family",
        words=("the chemical family of", "the element family of"),
        sentence="Its chemical family is {}.",
    ),
    Relation(
        name="discovery country",
        subject="element",
        object="country",
        words=("the country of discovery of", "the country that saw the discovery of"),
        sentence="It was discovered in {}.",
        many=True,
    ),
    Relation(
        name="discovery year",
        subject="element",
        object="year",
        words=("the year of discovery of", "the year that saw the discovery of"),
    ),
    Relation(
        name="crystal structure",
        subject="element",
        object="structure",
        words=("the crystal structure of", "the crystal lattice of"),
    ),
    Relation(
        name="next element",
        subject="element",
        object="element",
        words=("the element right after", "the next element after"),
        back="previous element",
        back_words=("the element right before", "the last element before"),
    ),
    Relation(
        name="state capital",
        subject="state",
        object="city",
        words=("the state capital of", "the statehouse city of"),
        back="state capital of",
        back_words=("the state whose capital is", "the state governed from"),
    ),
    Relation(
        name="postal code",
        subject="state",
        object="code",
        words=("the postal abbreviation of", "the mail abbreviation of"),
        sentence="Its postal abbreviation is {}.",
        back="postal code of",
        back_words=("the state with the postal abbreviation", "the state whose postal abbreviation is"),
    ),
    Relation(
        name="statehood year",
        subject="state",
        object="year",
        words=("the statehood year of", "the year of statehood of"),
    ),
    Relation(
        name="currency code",
        subject="currency",
        object="code",
        words=("the currency code of", "the banking code of"),
        back="currency code of",
        back_words=("the currency with the code", "the currency whose code is"),
    ),
    Relation(
        name="currency sign",
        subject="currency",
        object="sign",
        words=("the currency sign of", "the sign on prices in"),
    ),
    Relation(
        name="script",
        subject="language",
        object="script",
        words=("the script of", "the writing system of"),
    ),
    Relation(
        name="language code",
        subject="language",
        object="code",
        words=("the language code of", "the ISO language code of"),
        back="language code of",
        back_words=("the language with the code", "the language whose code is"),
    ),
)
