"""NHWC for algorithms that read rows of x and write rows of y: copies of x, y and the residual in HBM, as NCHW.

DMA turns [pixels, c] of x into [c, pixels] on the way to SBUF, from where they go to the copy as rows; with few
channels an engine sorts the pixels of whole rows instead, as few partitions would be slow to store. After the
convolution, the same the other way round for y. The cores share both, and wait for each other after each.
"""

from ..._nki import nisa, nl
from .._dma import copy
from .._engines import is_16bit, new_ledger, pick
from .._tiles import INSTRUCTIONS_MAX, PARTS, cut, div_ceil, share
from .call import Operands
from .geometry import Geometry

#: Algorithms that take channels side by side as they are.
OWN = ("taps", "swapped")
#: Up to so many channels an engine sorts the pixels of rows.
FEW = 16
#: Bytes a partition of one piece of a copy.
PIECE_BYTES = 16_384


def turns_x(algorithm, geometry):
    """Whether an algorithm gets a copy of x; DMA turns no single bytes."""
    last = geometry.x_c == 1 and geometry.C > 1 and geometry.x_w > 1
    return algorithm not in OWN and last and geometry.hbm_itemsize > 1


def turns_y(algorithm, geometry):
    """Whether an algorithm writes a copy of y."""
    return algorithm not in OWN and geometry.y_k == 1 and geometry.K > 1 and geometry.y_q > 1


def plain_of(algorithm, geometry, extras):
    """The Geometry that an algorithm sees: strides of the copies."""
    rows, columns = geometry.rows, geometry.columns
    x = (geometry.x_n, geometry.x_c, geometry.x_h, geometry.x_w)
    y = (geometry.y_n, geometry.y_k, geometry.y_p, geometry.y_q)
    r = (geometry.r_n, geometry.r_k, geometry.r_p, geometry.r_q)
    if turns_x(algorithm, geometry):
        x = dense(geometry.C, rows.size, columns.size)
    if turns_y(algorithm, geometry):
        y = dense(geometry.K, rows.out // extras.pool[0], columns.out // extras.pool[1])
        r = dense(geometry.K, rows.out, columns.out)
    return Geometry(
        N=geometry.N,
        C=geometry.C,
        K=geometry.K,
        groups=geometry.groups,
        rows=rows,
        columns=columns,
        x_n=x[0],
        x_c=x[1],
        x_h=x[2],
        x_w=x[3],
        w_k=geometry.w_k,
        w_c=geometry.w_c,
        w_r=geometry.w_r,
        w_s=geometry.w_s,
        y_n=y[0],
        y_k=y[1],
        y_p=y[2],
        y_q=y[3],
        r_n=r[0],
        r_k=r[1],
        r_p=r[2],
        r_q=r[3],
        packed=geometry.packed,
        itemsize=geometry.itemsize,
        hbm_itemsize=geometry.hbm_itemsize,
        fast=geometry.fast,
        precision=geometry.precision,
    )


def dense(channels, height, width):
    """Strides along n, c, h, w of rows side by side."""
    return (channels * height * width, height * width, width, 1)


def copied_in(algorithm, operands, geometry):
    """Operands of which x and the residual are copies where the algorithm needs them, and y is one to be written."""
    rows, columns = geometry.rows, geometry.columns
    x, residual, y = operands.x, operands.residual, operands.y
    copies = []
    if turns_x(algorithm, geometry):
        strides = (geometry.x_n, geometry.x_h, geometry.x_w)
        x = rows_of(operands.x, strides, (geometry.N, geometry.C, rows.size, columns.size))
        copies.append(x)
    if turns_y(algorithm, geometry):
        if operands.residual != None:
            strides = (geometry.r_n, geometry.r_p, geometry.r_q)
            residual = rows_of(operands.residual, strides, (geometry.N, geometry.K, rows.out, columns.out))
            copies.append(residual)
        y = nl.ndarray((y.shape[0] * y.shape[1] * y.shape[2] * y.shape[3],), dtype=y.dtype, buffer=nl.shared_hbm)
    for index in range(len(copies)):
        meet(copies[index])
    return Operands(
        x=x,
        w=operands.w,
        y=y,
        bias=operands.bias,
        residual=residual,
        beta=operands.beta,
        x_dtype=operands.x_dtype,
        w_dtype=operands.w_dtype,
        tf32=operands.tf32,
    )


def copy_out(algorithm, operands, inner, geometry, extras):
    """y from the copy that the algorithm wrote, if it did."""
    if turns_y(algorithm, geometry):
        meet(inner.y)
        P, Q = geometry.rows.out // extras.pool[0], geometry.columns.out // extras.pool[1]
        strides = (geometry.y_n, geometry.y_p, geometry.y_q)
        pixels_of(operands.y, strides, inner.y, (geometry.N, geometry.K, P, Q))


def meet(hbm):
    """Have two cores wait for what both write."""
    if nl.num_programs() == PARTS:
        nisa.core_barrier(data=hbm, cores=(0, 1))


def rows_of(source_hbm, strides, shape):
    """A copy [n, c, h, w] in HBM of a tensor whose channels lie side by side; strides along n, h, w there."""
    N, C, H, W = shape
    rows_hbm = nl.ndarray((N * C * H * W,), dtype=source_hbm.dtype, buffer=nl.shared_hbm)
    item = 4 if source_hbm.dtype == nl.float32 else 2
    ledger = new_ledger()
    pieces = sorted_pieces(shape, item) if C <= FEW else turned_pieces(shape, item)
    mine = share(len(pieces), nl.num_programs(), nl.program_id(0))
    for piece in pieces[mine[0] : mine[0] + mine[1]]:
        n, nn, c0, cn, h0, hn, w0, wn = piece
        source = n * strides[0] + c0 + h0 * strides[1] + w0 * strides[2]
        offset = n * C * H * W + c0 * H * W + h0 * W + w0
        if C <= FEW:
            src = source_hbm.ap(pattern=[[strides[1], hn], [strides[2], wn], [1, cn]], offset=source)
            sort_piece(rows_hbm.ap(pattern=[[W, hn], [H * W, cn], [1, wn]], offset=offset), src, ledger)
        else:
            rows_sbuf = nl.ndarray((cn, nn, hn, wn), dtype=source_hbm.dtype, buffer=nl.sbuf)
            pattern = [[strides[2], wn], [strides[0], nn], [strides[1], hn], [1, cn]]
            nisa.dma_transpose(dst=rows_sbuf, src=source_hbm.ap(pattern=pattern, offset=source), axes=(3, 1, 2, 0))
            pattern = [[H * W, cn], [C * H * W, nn], [W, hn], [1, wn]]
            copy(rows_hbm.ap(pattern=pattern, offset=offset), rows_sbuf)
    return rows_hbm


def turned_pieces(shape, item):
    """(image, images, first channel, channels, first row, rows, first column, columns) of pieces with channels on the
    partitions."""
    N, C, H, W = shape
    channels = cut(C, nl.tile_size.pmax)
    columns = cut(W, PIECE_BYTES // item)
    heights = cut(H, max(1, PIECE_BYTES // (item * columns[-1][1])))
    images = images_of(N, H * W * item, len(heights) * len(columns))
    if len(images) * len(channels) * len(columns) * len(heights) % PARTS == 1 and H >= PARTS * len(heights):
        heights = cut(H, div_ceil(H, PARTS * len(heights)))
    return every_piece(images, channels, heights, columns)


def images_of(N, image_bytes, pieces):
    """(first, how many) images of a piece: several where each is one piece, and both cores have some."""
    together = min(PIECE_BYTES // image_bytes, div_ceil(N, PARTS)) if pieces == 1 else 1
    return cut(N, max(1, together))


def sorted_pieces(shape, item):
    """The same with rows on the partitions, all channels, one image."""
    N, C, H, W = shape
    columns = cut(W, max(1, PIECE_BYTES // (item * C)))
    heights = cut(H, nl.tile_size.pmax)
    if N * len(columns) * len(heights) % PARTS == 1 and H > len(heights):
        heights = cut(H, div_ceil(H, PARTS * len(heights)))
    return every_piece(cut(N, 1), [(0, C)], heights, columns)


def pixels_of(y_hbm, strides, rows_hbm, shape):
    """Write y, whose channels lie side by side, from [n, k, p, q] in HBM; strides of y along n, p, q."""
    _, K, P, Q = shape
    item = 4 if rows_hbm.dtype == nl.float32 else 2
    ledger = new_ledger()
    pieces = sorted_pieces(shape, item) if K <= FEW else pixel_pieces(shape, strides, item)
    mine = share(len(pieces), nl.num_programs(), nl.program_id(0))
    for piece in pieces[mine[0] : mine[0] + mine[1]]:
        if K <= FEW:
            n, _, _, kn, p0, pn, q0, qn = piece
            src = rows_hbm.ap(pattern=[[Q, pn], [P * Q, kn], [1, qn]], offset=n * K * P * Q + p0 * Q + q0)
            offset = n * strides[0] + p0 * strides[1] + q0 * strides[2]
            sort_piece(y_hbm.ap(pattern=[[strides[1], pn], [strides[2], qn], [1, kn]], offset=offset), src, ledger)
        else:
            n, nn, p, first, tiles, each, k0, kn, step = piece
            turned_sbuf = nl.ndarray((each, nn, tiles, kn), dtype=rows_hbm.dtype, buffer=nl.sbuf)
            src = rows_hbm.ap(
                pattern=[[P * Q, kn], [K * P * Q, nn], [each, tiles], [1, each]],
                offset=n * K * P * Q + k0 * P * Q + p * Q + first,
            )
            nisa.dma_transpose(dst=turned_sbuf, src=src, axes=(3, 1, 2, 0))
            pattern = [[step, each], [strides[0], nn], [each * step, tiles], [1, kn]]
            copy(y_hbm.ap(pattern=pattern, offset=n * strides[0] + p * strides[1] + first * step + k0), turned_sbuf)


def pixel_pieces(shape, strides, item):
    """(image, images, row, first pixel of it, tiles, pixels of a tile, first channel, channels, step of pixels in y) of
    pieces with pixels on the partitions; rows of an image are one where they are evenly spaced in y."""
    N, K, P, Q = shape
    lines, pixels, step = P, Q, strides[2]
    if strides[1] == Q * strides[2] or P == 1 or Q == 1:
        lines, pixels = 1, P * Q
        step = strides[1] if Q == 1 and P > 1 else strides[2]
    channels = cut(K, PIECE_BYTES // item)
    tiles = div_ceil(pixels, nl.tile_size.pmax)
    each = pixels // tiles
    rest = pixels - each * tiles
    most = max(1, PIECE_BYTES // (item * channels[-1][1]))
    groups = cut(tiles, min(most, max(1, div_ceil(tiles, PARTS))) if N * lines % PARTS == 1 else most)
    images = images_of(N, tiles * channels[-1][1] * item, len(groups))
    found = []
    for n in range(len(images)):
        for line in range(lines):
            for k in range(len(channels)):
                for index in range(len(groups)):
                    first = groups[index][0] * each
                    found.append(images[n] + (line, first, groups[index][1], each) + channels[k] + (step,))
                if rest > 0:
                    found.append(images[n] + (line, each * tiles, 1, rest) + channels[k] + (step,))
    return found


def relayout_refusal(algorithm, geometry, extras):
    """Why the copies cannot be made, or ""."""
    count = relayout_instructions(algorithm, geometry, extras)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, H={geometry.rows.size}, W={geometry.columns.size}: copies of x and y as NCHW need "
            f"{count} instructions, the compiler takes {INSTRUCTIONS_MAX}; split N over several calls"
        )
    return ""


def relayout_instructions(algorithm, geometry, extras):
    """Instructions of both cores for the copies."""
    total = 0
    if turns_x(algorithm, geometry):
        shape = (geometry.N, geometry.C, geometry.rows.size, geometry.columns.size)
        few = geometry.C <= FEW
        pieces = sorted_pieces(shape, geometry.hbm_itemsize) if few else turned_pieces(shape, geometry.hbm_itemsize)
        total += 3 * len(pieces) + 1
    if turns_y(algorithm, geometry):
        P, Q = geometry.rows.out // extras.pool[0], geometry.columns.out // extras.pool[1]
        strides, shape = (geometry.y_n, geometry.y_p, geometry.y_q), (geometry.N, geometry.K, P, Q)
        item = extras.epilogue.y_itemsize
        few = geometry.K <= FEW
        total += 3 * len(sorted_pieces(shape, item) if few else pixel_pieces(shape, strides, item)) + 1
        if extras.residual:
            total += 3 * len(turned_pieces((geometry.N, geometry.K, geometry.rows.out, geometry.columns.out), 4)) + 1
    return total


def sort_piece(dst, src, ledger):
    """Copy [rows, a, b] of HBM to [rows, b, a]: rows on partitions, an engine sorts their elements."""
    rows, first, second = src.shape
    raw_sbuf = nl.ndarray((rows, first, second), dtype=src.dtype, buffer=nl.sbuf)
    copy(raw_sbuf, src)
    sorted_sbuf = nl.ndarray((rows, second, first), dtype=src.dtype, buffer=nl.sbuf)
    engine = pick(ledger, first * second, is_16bit(src.dtype))
    nisa.tensor_copy(dst=sorted_sbuf, src=raw_sbuf.permute((0, 2, 1)), engine=engine)
    copy(dst, sorted_sbuf)


def every_piece(images, channels, heights, columns):
    """Pieces of all of these (first, how many), side by side."""
    found = []
    for n in images:
        for c in channels:
            for h in heights:
                for w in columns:
                    found.append(n + c + h + w)
    return found
