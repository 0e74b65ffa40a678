"""What an operation is: its row, its fields, who may send it, the dispatcher that runs it, and its answers."""
