"""Named consumers, pure: what the set keeps of one, and which events of a shared one go to which reader."""
