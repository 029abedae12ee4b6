"""Pixels as the stationary operand, filters as the moving one: results have their output channels side by side."""
