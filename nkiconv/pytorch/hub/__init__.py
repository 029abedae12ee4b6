"""nkiconv for Hugging Face's `kernels`: its functions, and `layers` that replace modules and functions.

`hub_package` copies this folder into packages that `kernels` loads under a name of its own, so imports of nkiconv are
absolute: the functions are those of the nkiconv that is installed.
"""

try:
    from nkiconv.pytorch import (
        causal_conv1d_fn,
        causal_conv1d_update,
        conv1d,
        conv2d,
        depthwise_conv1d,
        depthwise_conv2d,
    )
except ImportError as error:
    raise ImportError(f"this package calls nkiconv, which cannot be imported ({error}); install it") from error

from . import layers

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "conv1d",
    "conv2d",
    "depthwise_conv1d",
    "depthwise_conv2d",
    "layers",
]
