"""The filter gradient by diagonals: for groups of few channels, depthwise filters first of all."""
