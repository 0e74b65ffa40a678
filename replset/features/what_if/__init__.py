"""`replset what-if`: plays the pure core forward from the state that a set is in."""
