"""Who takes which queue, for consumers and producers: pure functions of sorted lists."""
