"""The categories of BFCL v4, and what each counts for in its overall score.

Source: `eval_runner_helper.generate_leaderboard_csv` of bfcl-eval 2026.3.23. Overall = 10% non-live, 10%
live, 10% irrelevance, 30% multi-turn, 40% agentic. Inside them: non-live is the mean of simple (itself the
mean of three languages), multiple, parallel and parallel_multiple; live is the mean over its items;
irrelevance and multi-turn are means of categories; agentic is the mean of web search, itself the mean of two
categories, and memory, itself the mean of three. Relevance and format sensitivity count for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
PARALLEL = ("multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
IRRELEVANCE = ("irrelevance", "live_irrelevance")
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
LONG_CONTEXT = "multi_turn_long_context"
MEMORY = ("memory_kv", "memory_rec_sum")
FORMAT_SENSITIVITY = "format_sensitivity"
"""Single-turn items, each under 26 formats of the prompt: no part of the overall score."""
MISSING: Mapping[str, str] = {
    "memory_vector": "it needs faiss, sentence-transformers and the weights of all-MiniLM-L6-v2",
    "web_search_base": "it needs the internet and a key of a search service",
    "web_search_no_snippet": "it needs the internet and a key of a search service",
}
"""Categories that are not here, and why."""

NON_LIVE_FILES = (*SIMPLE, *PARALLEL, "irrelevance")
LIVE_FILES = (*LIVE, "live_irrelevance", "live_relevance")
SINGLE_TURN = (*NON_LIVE_FILES, *LIVE_FILES)
ALL = (*SINGLE_TURN, *MULTI_TURN, *MEMORY)

GROUPS: Mapping[str, tuple[str, ...]] = {
    "non_live": (*SIMPLE, *PARALLEL),
    "live": LIVE,
    "irrelevance": IRRELEVANCE,
    "multi_turn": MULTI_TURN,
    "memory_kv_and_rec_sum": MEMORY,
}
"""What the overall score is made of, as far as it can be measured here: memories are a part of agentic."""
WEIGHTS: Mapping[str, float] = {
    "non_live": 10,
    "live": 10,
    "irrelevance": 10,
    "multi_turn": 30,
    "agentic": 40,
    "memory_kv_and_rec_sum": 40 / 2 * 2 / 3,
    "missing": 40 / 2 + 40 / 2 / 3,
}
"""Percent of the overall score. Agentic is the two memories and what is missing: web search, the third."""

COLLECTIONS: Mapping[str, tuple[str, ...]] = {
    "all": ALL,
    "single_turn": SINGLE_TURN,
    "multi_turn": MULTI_TURN,
    "non_live": NON_LIVE_FILES,
    "live": LIVE_FILES,
    "memory": MEMORY,
}
SPLITS: Mapping[str, str] = {
    "all": "every category but format_sensitivity; there are no memory_vector and no web search",
    "single_turn": "the 13 categories of one reply: calls compared by structure, and (ir)relevance",
    "multi_turn": "the four multi-turn categories, 200 conversations each",
    "non_live": "single-turn, written by the authors, irrelevance included",
    "live": "single-turn, contributed by users, (ir)relevance included",
    "memory": "questions on what the model noted in earlier conversations, which are held first",
    "format_sensitivity": "200 single-turn items under 26 formats of the prompt; for models asked in text",
    **{name: f"the category {name} alone" for name in ALL},
}


def categories_of(split: str) -> tuple[str, ...]:
    """The categories of a split."""
    return COLLECTIONS.get(split, (split,))


def checks_calls(category: str) -> bool:
    """Whether the calls themselves are compared; (ir)relevance only asks whether there were any."""
    return "relevance" not in category
