"""What a broker is asked, by family of requests."""
