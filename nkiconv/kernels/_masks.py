"""Masks by rules of partition and place."""

from .._nki import nisa, nl


def keep_between(mask_sbuf, pattern, width):
    """Zeros in a mask but where the partition plus a pattern of places, as affine_select has it, is 0 .. width-1."""
    for side in range(2):
        nisa.affine_select(
            dst=mask_sbuf,
            pattern=pattern,
            channel_multiplier=1,
            on_true_tile=mask_sbuf,
            on_false_value=0.0,
            cmp_op=nl.greater_equal if side == 0 else nl.less,
            offset=0 if side == 0 else -width,
        )
