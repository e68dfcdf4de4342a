"""Which strategies the mode takes."""


def is_albatross_strategy(strategy):
    return strategy.split()[0] in ("albatross", "chirrup")
