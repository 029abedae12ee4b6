"""Small groups on row tiles of the array: the columns of a stationary hold a block of neighbouring outputs."""
