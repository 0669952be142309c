"""The sampling loop: inference streams, passes, interleaving, warm-up, stopping."""
