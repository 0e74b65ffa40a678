"""What members send to each other: the commands, their documents, and the oplog and copies that they serve."""
