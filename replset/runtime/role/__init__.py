"""The primary's role: the hook that follows it, and handing it over before a stop."""
