"""What a module hands to TVM's paged cache of keys and values."""
