"""The text form of Params: writing, reading, comparing."""
