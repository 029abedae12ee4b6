"""Settings of a `banded` that is called with none, or with some."""

from ..._settings import setting
from .config import BandedConfig, read_banded


def settings_of_banded(geometry, extras, config):
    """All settings of a config."""
    return read_banded(config, banded_defaults(geometry, extras, setting(config, "block", 0)))


def banded_defaults(geometry, extras, block):
    return BandedConfig(block=128//geometry.stride*geometry.stride,shard="channels",groups=1,images=1,buffer_groups=1,buffers=1,scratch=False,edge=0,streamed=64,warmup=0,rewarm=0,bands_first=False)
