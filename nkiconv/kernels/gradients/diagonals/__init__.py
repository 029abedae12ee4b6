"""The filter gradient by diagonals, for groups of few channels, mainly depthwise filters."""
