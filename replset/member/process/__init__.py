"""The process: clock, threads, log, and whether its event loop keeps up."""
