"""Results that are stored or published: read, named, and written up once a sweep is over."""
