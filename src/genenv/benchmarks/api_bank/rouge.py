"""ROUGE-L as API-Bank's authors measure it: the summary-level F of the package `rouge` (Lin 2004).

Texts are split into sentences at full stops and into words at spaces, both case-sensitive. For every sentence
of the reference, the words of its longest common subsequence with each sentence of the answer are collected.
That package counts every distinct word once, both in these and in the lengths; so does this one.

Shapes: M = words of one sentence of the reference, N = of one of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_WORDS = 1_000
"""Of a longer answer only so many words are read; replies of 512 tokens never have as many."""
_MAX_CHARS = 50_000
_EPSILON = 1e-8


def rouge_l(answer: str, reference: str) -> float:
    """F = 2PR / (P + R), in [0, 1].

    P and R are the distinct words in the common subsequences, over the answer's and over the reference's.
    """
    given, wanted = _sentences(answer), _sentences(reference)
    if not given or not wanted:
        return 0.0
    common: set[str] = set()
    for sentence in wanted:
        for other in given:
            common |= _common_words(sentence, other)
    precision, recall = len(common) / _distinct(given), len(common) / _distinct(wanted)
    return 2 * precision * recall / (precision + recall + _EPSILON)


def _sentences(text: str) -> list[list[str]]:
    """Words by sentence. A sentence of spaces alone is one empty word, as in the package."""
    left, found = MAX_WORDS, list[list[str]]()
    for sentence in text[:_MAX_CHARS].split("."):
        if sentence and left > 0:
            words = (sentence.split() or [""])[:left]
            left -= len(words)
            found.append(words)
    return found


def _distinct(sentences: Sequence[Sequence[str]]) -> int:
    return len({word for sentence in sentences for word in sentence})


def _common_words(reference_M: Sequence[str], answer_N: Sequence[str]) -> set[str]:
    """The words of the longest common subsequence that the package finds: from the end, answer first."""
    if not set(reference_M) & set(answer_N):
        return set()
    rows = _lengths(reference_M, answer_N)
    i, j, found = len(reference_M), len(answer_N), set[str]()
    while i and j:
        if reference_M[i - 1] == answer_N[j - 1]:
            i, j = i - 1, j - 1
            found.add(reference_M[i])
        elif rows[i - 1][j] > rows[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def _lengths(first: Sequence[str], second: Sequence[str]) -> list[list[int]]:
    """[M+1][N+1] lengths of the longest common subsequences of all beginnings."""
    rows = [[0] * (len(second) + 1)]
    for word in first:
        above, row = rows[-1], [0]
        for j, other in enumerate(second):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        rows.append(row)
    return rows
