"""The stages of aggregation pipelines. `query/pipeline.py` has their table."""
