"""What a known solution teaches: its replies, and nothing of what the environment said."""

from __future__ import annotations

from genenv.algorithms.advantages import imitate
from genenv.algorithms.datum import Datum


def test_of_a_solution_the_replies_are_imitated_at_temperature_1_and_the_rest_is_read(toy):
    solution = toy.trace((5, 6, 7), [(8, 9, 1), (30, 31), (4, 1)], success=True)
    (imitated,) = imitate(solution)
    assert imitated == Datum(
        prompt_ids=(5, 6, 7),
        completion_ids=(8, 9, 1, 30, 31, 4, 1),
        weights=(1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0),
        loss="nll",
    )
    assert (imitated.tokens, imitated.temperature) == (5, 1.0)
