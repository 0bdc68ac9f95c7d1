"""In depth-first order one comparison says who attends to whom, and for whole blocks of tokens as well."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genenv.backends.local.cuda.tree_layers import TreeMask, block_mask
from genenv.backends.local.packing import BLOCK, Bundle, Packed, TokenTree

CPU = torch.device("cpu")


def tree_of(*bundles: tuple[list[int], list[list[int]]]) -> TokenTree:
    return TokenTree([Bundle(prompt_ids=prompt, completions=rows) for prompt, rows in bundles], CPU)


def test_each_prompt_is_followed_by_its_completions_and_then_by_prompts_that_continue_it():
    tree = tree_of(([7, 8, 2], [[3]]), ([7, 8], [[2, 5]]), ([7, 8, 2, 1], []), ([9], []), ([7, 8], [[6]]))
    #            7  8 [2  5] [6] 2 [3] 1  9
    assert tree.tokens == 9
    assert tree.ids_N[:9].tolist() == [7, 8, 2, 5, 6, 2, 3, 1, 9]
    assert tree.positions_N[:9].tolist() == [0, 1, 2, 3, 2, 2, 3, 3, 0]
    assert tree.end_N[:9].tolist() == [8, 8, 4, 4, 5, 8, 7, 8, 9]


def test_targets_are_in_the_order_in_which_completions_were_given():
    tree = tree_of(([7, 8, 2], [[3], []]), ([7, 8], [[2, 5], [6]]))
    assert tree.tokens_M.tolist() == [3, 2, 5, 6]
    assert tree.ids_N[tree.at_M].tolist() == [2, 8, 2, 8]


def test_padding_attends_to_itself_alone():
    tree = tree_of(([1], []))
    assert tree.blocks == 2
    assert torch.equal(tree.attends_NN(), torch.eye(2 * BLOCK, dtype=torch.bool))


def test_a_bundle_without_a_prompt_is_refused():
    with pytest.raises(ValueError, match="at least one prompt token"):
        tree_of(([], [[1]]))


few = st.lists(st.integers(1, 2), min_size=1, max_size=5)
"""So few different ids that many prompts begin alike."""


@given(shapes=st.lists(st.tuples(few, st.lists(few, max_size=3)), min_size=1, max_size=6))
def test_a_token_attends_to_what_comes_before_it_in_its_own_sequence(shapes):
    tree, packed = tree_of(*shapes), Packed([Bundle(prompt_ids=p, completions=c) for p, c in shapes], CPU)
    assert tree.tokens == packed.tokens
    seen_NN, ids, at = tree.attends_NN(), tree.ids_N.tolist(), iter(tree.at_M.tolist())
    assert tree.tokens_M.tolist() == packed.targets()[1].tolist()
    for prompt, completions in shapes:
        for completion in completions:
            for t in range(len(completion)):
                query = next(at)  # the state that predicts token t has read all before it
                keys = seen_NN[query].nonzero()[:, 0].tolist()
                assert [ids[key] for key in keys] == [*prompt, *completion[:t]]
                assert tree.positions_N[keys].tolist() == list(range(len(prompt) + t))


@pytest.mark.long
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 400), st.lists(st.integers(1, 300), max_size=3)), min_size=1, max_size=4
    ),
    shared=st.integers(0, 300),
)
def test_blocks_of_which_all_or_none_is_seen_are_known_exactly(lengths, shared):
    common = [5] * shared
    tree = tree_of(
        *(([*common, i, *[6] * n], [[7] * m for m in rows]) for i, (n, rows) in enumerate(lengths))
    )
    blocks = tree.attends_NN().view(tree.blocks, BLOCK, tree.blocks, BLOCK).transpose(1, 2).flatten(2)
    partly, whole = tree.partly_and_whole()
    assert torch.equal(whole, blocks.all(2))
    assert torch.equal(partly, blocks.any(2) & ~blocks.all(2))


def test_the_mask_that_torch_gets_is_the_same():
    tree = tree_of(([*range(200)], [[1] * 150, [2] * 90]), ([*range(130), 7], [[3] * 200]))
    mask = block_mask(TreeMask.of(tree))
    partly, whole = tree.partly_and_whole()
    assert torch.equal(mask.to_dense()[0, 0].bool(), partly | whole)
    places = torch.arange(len(tree.ids_N))
    attends = mask.mask_mod(torch.tensor(0), torch.tensor(0), places[:, None], places[None])
    assert torch.equal(attends, tree.attends_NN())
    assert torch.equal(mask.q_num_blocks[0, 0].long(), partly.sum(0))
