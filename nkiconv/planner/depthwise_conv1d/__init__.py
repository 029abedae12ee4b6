"""The depthwise conv1d kernel as the planner sees it."""
