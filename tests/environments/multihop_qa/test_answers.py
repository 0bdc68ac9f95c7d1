import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.environments.multihop_qa.environment import _words
from genenv.environments.multihop_qa.kb import built_in
from genenv.environments.multihop_qa.search import accepted, answer_of, exact, normalized, token_f1

BASE = built_in()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  United States", "united states"),
        ("São Tomé!", "sao tome"),
        ("Asia/Tokyo", "asiatokyo"),
        (".fr", "fr"),
        ("+33", "33"),
        ("$", "$"),
        ("€", "€"),
        ("an apple a day", "apple day"),
        ("", ""),
        ("the", "the"),
        ("Łódź", "lodz"),
        ("Tromsø, Ærø, İzmir ve Diyarbakır", "tromso aero izmir ve diyarbakir"),
        ("-15 feet", "-15 feet"),
        ("\u221215 feet.", "-15 feet"),
        ("Body-centered - 2-1", "bodycentered 21"),
        ("+1-684", "1684"),
        ("2.5 kg.", "2.5 kg"),
        ("1,250", "1250"),
        ("at 10:30", "at 10:30"),
        ("C++", "c++"),
        ("C#.", "c#"),
    ],
)
def test_normalization_is_that_of_squad_without_accents(text: str, expected: str) -> None:
    assert normalized(text) == expected


@given(st.text(max_size=200))
def test_normalizing_twice_changes_nothing_that_matters(text: str) -> None:
    assert exact(text, [text]) or len(text) > 400
    assert token_f1(text, [text]) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("answer", "f1"),
    [
        ("danish krone", 1.0),
        ("krone", 2 / 3),  # precision 1, recall 1/2
        ("the Danish krone or euro", 2 * 0.5 * 1 / 1.5),  # precision 2/4, recall 1
        ("euro", 0.0),
        ("", 0.0),
        ("krone " * 3, 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)),
    ],
)
def test_token_f1_by_hand(answer: str, f1: float) -> None:
    assert token_f1(answer, ["Danish Krone"]) == pytest.approx(f1)


def test_below_sea_level_is_not_above_it() -> None:
    assert not exact("15 feet", accepted(BASE, "-15 feet"))
    assert not exact("-392", accepted(BASE, "392 feet"))
    assert exact("-15", accepted(BASE, "-15 feet"))


def test_f1_takes_the_nearest_alias() -> None:
    assert token_f1("US", ["United States", "US"]) == 1.0


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Paris", "Paris"),
        ("It is in France.\n\nAnswer: Paris\n", "Paris"),
        ("the final answer is: Paris", "Paris"),
        ("Paris\nOslo", "Oslo"),
        ("", ""),
        ("Answer:", ""),
        ("**Answer:** Paris", "Paris"),
        ("**Final answer**: Paris", "Paris"),
        ("The answer is Paris.", "Paris."),
        ("The answer is: **Paris**", "**Paris**"),
        ("Here:\n```\nParis\n```\n", "Paris"),
        ("```\nThe capital is\n\n  Answer: Paris  \n\n```", "Paris"),
        ("```", "```"),
        ("Answer isosceles", "Answer isosceles"),
    ],
)
def test_the_last_line_is_the_answer(reply: str, answer: str) -> None:
    assert answer_of(reply) == answer


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("United States", "USA"),
        ("Czechia", "Czech Republic"),
        ("group 16", "16"),
        ("period 6", "6"),
        ("p-block", "p"),
        ("392 feet", "392"),
        ("noble gases", "noble gas"),
        ("metalloids", "metalloid"),
        ("Latin script", "Latin"),
        ("Danish Krone", "Danish kroner"),
        ("d-block", "d block"),
        *(("$", one) for one in ("**$**", "$.", "`$`", '"$"', "($)", "- $")),
    ],
)
def test_other_ways_to_say_an_answer_count(name: str, also: str) -> None:
    assert exact(also, accepted(BASE, name))


def test_no_two_things_of_a_kind_are_accepted_for_each_other_unless_accents_alone_differ() -> None:
    for kind in ("country", "element", "currency", "language", "state", "continent", "family"):
        by_text: dict[str, str] = {}
        for name in BASE.by_kind[kind]:
            for said in accepted(BASE, name):
                assert by_text.setdefault(normalized(said), name) == name, (said, name)


@pytest.mark.parametrize(
    "names", [("2.5 kg", "25 kg"), ("C", "C++", "C#"), ("1.12.0", "11.2.0"), ("10:30", "1030")]
)
def test_names_that_differ_by_a_point_or_a_sign_are_different_answers(names: tuple[str, ...]) -> None:
    for name in names:
        assert [other for other in names if exact(name, [other])] == [name]
        assert [other for other in names if _words(name) == _words(other)] == [name]
