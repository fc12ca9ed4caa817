"""A function that captures itself: at first sight of a size, and replays after (`breakgraph.graphed`)."""
