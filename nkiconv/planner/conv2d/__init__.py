"""The conv2d kernel as the planner sees it."""
