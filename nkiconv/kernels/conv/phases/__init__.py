"""Transposed convolutions in phases (polyphase): each phase has taps of its own, so no zeros are multiplied."""
