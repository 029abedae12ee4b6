"""Random views as operands give what NumPy gives on copies of the same elements."""

from __future__ import annotations

import numpy as np
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from isa_tiles import evaluate, get, put, same

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

EXAMPLES = draws(150)


@st.composite
def windows(draw, size):
    """A slice of a dim of `size` elements."""
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    return slice(start, stop, draw(st.integers(1, 3)))


@st.composite
def views(draw, max_free_dims=3):
    """(shape of a stored tile, the slices and the permutation that make a view of it)."""
    dims = draw(st.integers(1, max_free_dims))
    shape = (draw(st.integers(1, 6)), *(draw(st.integers(1, 7)) for _ in range(dims)))
    partitions = slice(0, draw(st.integers(1, shape[0])))
    free = tuple(draw(windows(n)) for n in shape[1:])
    return shape, (partitions, *free), (0, *draw(st.permutations(range(1, dims + 1))))


def numbers(shape, start=0):
    """Distinct values, exact in fp32."""
    return np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)


@EXAMPLES
@given(view=views(), to_psum=st.booleans())
def test_a_view_is_read_as_numpy_reads_it(view, to_psum):
    shape, index, order = view
    values = numbers(shape)
    expected = values[index].transpose(order)

    def body():
        dst = nl.ndarray(expected.shape, nl.float32, nl.psum if to_psum else nl.sbuf)
        nisa.tensor_copy(dst, put(values)[index].permute(order))
        return get(dst)

    same(evaluate(body), expected.copy())


@EXAMPLES
@given(view=views())
def test_a_view_is_written_as_numpy_writes_it(view):
    shape, index, order = view
    old = numbers(shape)
    window = old[index].transpose(order)
    new = numbers(window.shape, 1000)

    def body():
        dst = put(old)
        nisa.tensor_copy(dst[index].permute(order), put(new))
        return get(dst)

    expected = old.copy()
    expected[index].transpose(order)[...] = new
    same(evaluate(body), expected)


@EXAMPLES
@given(left=views(), scale=st.integers(-3, 3), data=st.data())
def test_two_views_meet_element_by_element(left, scale, data):
    shape, index, order = left
    values = numbers(shape)
    a = values[index].transpose(order)
    shuffled = data.draw(st.permutations(range(1, a.ndim)))
    b = numbers(tuple(a.shape[d] for d in (0, *shuffled)), 500)
    back = (0, *(int(d) + 1 for d in np.argsort(shuffled)))

    def body():
        dst = nl.ndarray((a.shape[0], a[0].size), nl.float32)
        x, y = put(values)[index].permute(order), put(b, buffer=nl.psum).permute(back)
        nisa.scalar_tensor_tensor(dst, x, nl.multiply, float(scale), nl.subtract, y)
        return get(dst)

    same(evaluate(body), (a * np.float32(scale) - b.transpose(back)).reshape(a.shape[0], -1))


@EXAMPLES
@given(view=views(4), data=st.data())
def test_dma_moves_any_view_in_row_major_order(view, data):
    shape, index, order = view
    values = numbers(shape)
    order = data.draw(st.permutations(range(len(shape))))
    expected = values[index].transpose(order)

    def body():
        dst = nl.ndarray((expected.size,), nl.float32, nl.hbm)
        nisa.dma_copy(dst, put(values, buffer=nl.hbm)[index].permute(tuple(order)))
        return get(dst)

    same(evaluate(body), expected.reshape(-1))


@EXAMPLES
@given(view=views(), columns=st.integers(1, 5))
def test_a_view_is_a_moving_operand(view, columns):
    shape, index, order = view
    values = numbers(shape) % 8
    moving = values[index].transpose(order)
    weights = numbers((moving.shape[0], columns)) % 5

    def body():
        dst = nl.ndarray((columns, *moving.shape[1:]), nl.float32, nl.psum)
        nisa.nc_matmul(dst, put(weights), put(values)[index].permute(order))
        return get(dst)

    same(evaluate(body), (weights.T @ moving.reshape(len(moving), -1)).reshape(columns, *moving.shape[1:]))
