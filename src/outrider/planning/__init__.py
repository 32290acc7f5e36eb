"""Planning: how many tokens to draft."""
