"""`replay`: the documents of a namespace at a point in time."""
