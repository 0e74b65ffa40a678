"""Runs the unified tests of the public MongoDB driver specifications against a real set, with PyMongo as the client.

The test files are not part of this project. `REPLSET_SPECIFICATIONS` names a clone of mongodb/specifications; without
it nothing here runs but the tests of the runner itself. `python -m tests.conformance` runs them and writes
`docs/conformance.md`.
"""
