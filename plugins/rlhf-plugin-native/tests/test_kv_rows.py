"""Sequences that come and go in place, against the cache that copies them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlhf_plugin_native.decode_step import BLOCK, GrowingLayer
from rlhf_plugin_native.kv_rows import Moves, RoomyLayer, few_moves

CPU = torch.device("cpu")


def layer_of(rows: int, length: int, generator: torch.Generator) -> GrowingLayer:
    layer = GrowingLayer()
    layer.update(*torch.randn(2, rows, 2, length, 4, generator=generator).unbind(0))
    return layer


@pytest.mark.parametrize("seed", range(8))
def test_what_is_held_is_what_the_plain_cache_holds(seed: int) -> None:
    """Hundreds of steps in which sequences are read on, dropped, joined: longer, shorter, more, fewer."""
    generator, choose = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    plain = layer_of(5, 7, generator)
    ours = RoomyLayer(layer_of(5, 7, torch.Generator().manual_seed(seed)), 12)
    held = np.full(5, 7)
    for _ in range(300):
        what = choose.integers(3)
        if what == 0:
            new = torch.randn(2, len(held), 2, int(choose.integers(1, 5)), 4, generator=generator)
            held += new.shape[3]
            plain.update(*new.unbind(0))
            ours.update(*new.unbind(0))
        elif what == 1 and len(held) > 2:
            alive = choose.random(len(held)) < choose.choice([0.2, 0.9])
            alive[choose.integers(len(held))] = True
            order = few_moves(alive)
            held = held[order]
            plain.select(torch.from_numpy(order), int(held.max()))
            ours.keep(Moves.of(order, CPU), int(held.max()))
        elif len(held) < 20:
            other = layer_of(int(choose.integers(1, 6)), int(choose.integers(1, 1 + int(held.max()) + 20)), generator)
            count = other.keys.shape[0]
            plain.join(other, int(held.max()))
            ours.join(other, int(held.max()))
            held = np.concatenate([held, np.full(count, other.length)])
        assert ours.length == plain.length
        for got, want in zip((ours.keys, ours.values), (plain.keys, plain.values), strict=True):
            assert got.shape == want.shape
            assert got.isfinite().all()  # what no sequence has is hidden, but is multiplied by 0
            for row, count in enumerate(held.tolist()):
                assert torch.equal(got[row, :, -count:], want[row, :, -count:])
    row = ours.copy_row(0, ours.length - int(held[0]), ours.length)
    assert torch.equal(row[0], plain.copy_row(0, plain.length - int(held[0]), plain.length)[0])


def test_rows_that_come_back_are_not_paid_for_by_the_others() -> None:
    """The buffers stay where they are: no step copies what stays."""
    generator = torch.Generator().manual_seed(0)
    layer = RoomyLayer(layer_of(64, 70, generator), 64)
    layer.join(layer_of(1, 70, generator), 70)  # makes the room
    where = [buffer.data_ptr() for buffer in layer.buffers]
    for step in range(30):
        alive = np.ones(65, dtype=np.bool_)
        alive[step : step + 4] = False
        layer.keep(Moves.of(few_moves(alive), CPU), layer.length)
        layer.join(layer_of(4, layer.length + 1, generator), layer.length)
    assert [buffer.data_ptr() for buffer in layer.buffers] == where
    layer.keep(Moves.of(np.arange(3), CPU), layer.length)
    assert layer.buffers[0].shape[0] == 3, "what few rows have no use for is given back"


@pytest.mark.parametrize(("bound", "rows"), [(None, 12), (1600, 8), (1200, 6), (200, 4)])
def test_room_is_within_the_bound_and_never_less_than_the_rows_need(bound: int | None, rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = RoomyLayer(layer_of(3, 70, generator), 12, bound)
    layer.join(layer_of(1, 70, generator), 70)
    assert layer.buffers[0].shape[:3:2] == (rows, 3 * BLOCK)
    layer.update(*torch.randn(2, 4, 2, 3 * BLOCK, 4, generator=generator).unbind(0))
    held, positions = layer.buffers[0].shape[:3:2]
    assert positions == 6 * BLOCK
    assert held == (rows if bound is None else max(4, bound // positions)), "longer rows leave room for fewer"


@pytest.mark.parametrize("roomy", [False, True])
def test_a_long_completion_moves_its_cache_a_few_times(roomy: bool) -> None:
    layer = layer_of(1, 70, torch.Generator().manual_seed(0))
    layer = RoomyLayer(layer, 1) if roomy else layer
    token, moves = torch.ones(2, 1, 2, 1, 4), 0
    while layer.length < 8192:
        before = layer.buffers[0]
        layer.update(*token.unbind(0))
        moves += layer.buffers[0] is not before
    assert layer.keys.shape[-2] == 8192
    assert (layer.keys[:, :, 70:] == 1).all()
    assert moves <= 32, "once a block would be 126"
    assert layer.buffers[0].shape[-2] <= 8192 * 1.15


def test_moves_are_worked_out_on_the_host() -> None:
    moves = Moves.of(np.array([0, 5, 2, 6]), CPU)
    assert [part.tolist() for part in moves] == [[0, 5, 2, 6], [1, 3], [5, 6]]


@pytest.mark.parametrize("alive", ["1111", "0111", "1010", "0001", "0000", "0011010"])
def test_only_the_last_rows_move(alive: str) -> None:
    flags = np.array([c == "1" for c in alive])
    order: Any = few_moves(flags)
    assert sorted(order.tolist()) == np.flatnonzero(flags).tolist()
    assert all(place == row or place < flags.sum() <= row for place, row in enumerate(order.tolist()))
