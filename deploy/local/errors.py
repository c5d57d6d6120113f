"""What can go wrong with a local stack, in words for the person who started it."""


class StackError(Exception):
    """The stack cannot do what was asked; the message is one line that says why and what to do."""
