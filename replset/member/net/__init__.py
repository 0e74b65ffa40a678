"""The two ends of the wire port: connections, their limits, TLS and keys."""
