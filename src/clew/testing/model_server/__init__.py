"""A server that speaks as three vendors do, and says what a test tells it to."""
