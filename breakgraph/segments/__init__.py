"""A forward as segments and breaks: captured once, replayed in turn."""
