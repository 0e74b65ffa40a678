"""The program that is called when a member gains or loses the primary's role."""
