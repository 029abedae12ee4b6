"""What `mixed` and `vector` share: rows of 128 channels, tap by tap; kernel.py is the way through them."""
