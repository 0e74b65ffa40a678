"""`verify`: whether oplogs are sound."""
