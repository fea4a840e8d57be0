"""How a consumer gets its queues, reads them, has them worked off and gives them up: parts that are composed."""
