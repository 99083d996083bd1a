"""Software pipelines with N versions of each buffer, and asynchronous copies."""
