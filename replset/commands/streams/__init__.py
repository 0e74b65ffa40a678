"""What follows the oplog: change streams, named consumers, a set that follows another."""
