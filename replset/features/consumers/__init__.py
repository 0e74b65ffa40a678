"""Named consumers: readers of changes whose position the set keeps."""
